"""The learning rate of every real step, seen by the optimizer itself, against a closed formula or torch alone."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import cadenza
from cadenza.callback import Callback
from cadenza.callbacks.rates.curves import Cosine, Curve
from cadenza.callbacks.rates.schedule import Schedule
from cadenza.callbacks.rates.schedules import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    FlatCosineSchedule,
    FunctionSchedule,
    MultiStepSchedule,
    OneCycleSchedule,
    PlateauSchedule,
    PolynomialSchedule,
    StepSchedule,
)
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.registration.checks import CallbackError
from cadenza.testing import Recorder, check_callback, tiny_classifier, tiny_loader
from cadenza.when import When

STEPS, EPOCHS, LR = 5, 4, 0.4
TOTAL = STEPS * EPOCHS


def half_wave(start: float, end: float, x: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * x)) / 2


class Setting:
    """A tiny training whose optimizer writes down the learning rate and the momentum of each real step."""

    def __init__(self, *callbacks: Callback, lr: Any = LR, split: bool = False, adam: bool = False, two: bool = False):
        self.model = tiny_classifier()
        layers: list[Any] = [{"params": self.model[0].parameters(), "name": "body", "lr": lr / 4 if split else lr}]
        last = {"params": self.model[2].parameters(), "name": "head", "lr": lr}
        kind = torch.optim.Adam if adam else torch.optim.SGD
        rest: dict[str, Any] = {} if adam else {"momentum": 0.9}
        self.optimizers = (
            [kind(layers, **rest), kind([last], **rest)]
            if two
            else [kind([*layers, last] if split else self.model.parameters(), lr=lr, **rest)]
        )
        self.lrs: list[float] = []
        self.rows: list[list[float]] = []
        self.momenta: list[float] = []
        self.optimizers[-1].register_step_pre_hook(self._note)
        self.trainer = cadenza.Trainer(
            self.model, self.optimizers, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu"
        )

    def _note(self, *_: Any) -> None:
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self.rows.append([float(group["lr"]) for group in groups])
        self.lrs.append(self.rows[-1][0])
        self.momenta.append(groups[0]["betas"][0] if "betas" in groups[0] else groups[0]["momentum"])

    def fit(self, **limits: int) -> list[float]:
        begin = len(self.lrs)
        self.trainer.fit(loader(), **(limits or {"epochs": EPOCHS}))
        return self.lrs[begin:]

    @property
    def group(self) -> dict[str, Any]:
        return self.optimizers[0].param_groups[0]


def loader(batches: int = STEPS) -> Any:
    return tiny_loader(samples=4 * batches, batch_size=4)


# The closed formulas ------------------------------------------------------------------------------------------------


def cosine_with_both(k: int) -> float:
    """3 steps of warm-up, 5 of cool-down at the end."""
    if k < 3:
        return (k + 1) / 4
    return half_wave(1, 0.1, (k - 3) / (TOTAL - 8)) if k < TOTAL - 5 else 0.1


def constant_to_zero(k: int) -> float:
    return 1 if k <= TOTAL - 8 else 1 - (k - (TOTAL - 8)) / 8


def one_cycle(k: int) -> float:
    x = k / TOTAL
    return half_wave(0.1, 1, x / 0.25) if x < 0.25 else half_wave(1, 0.01, (x - 0.25) / 0.75)


FORMULAS: dict[str, tuple[Callable[[], Schedule], Callable[[int], float]]] = {
    "step": (lambda: StepSchedule(2, gamma=0.5), lambda k: 0.5 ** (k // STEPS // 2)),
    "step by steps": (lambda: StepSchedule(3, cadence="step"), lambda k: 0.1 ** (k // 3)),
    "multi-step": (lambda: MultiStepSchedule([1, 3], gamma=0.5), lambda k: 0.5 ** sum(k // STEPS >= m for m in (1, 3))),
    "multi-step, warm-up by steps over the first milestone": (
        lambda: MultiStepSchedule([1], gamma=0.5, warmup="7 steps"),
        lambda k: min(1, (k + 1) / 8) * 0.5 ** (k // STEPS >= 1),
    ),
    "exponential": (lambda: ExponentialSchedule(0.9), lambda k: 0.9 ** (k // STEPS)),
    "exponential by steps, warm-up in epochs": (
        lambda: ExponentialSchedule(0.9, cadence="step", warmup="1 epoch", warmup_from=0.2),
        lambda k: min(1, 0.2 + 0.8 * k / STEPS) * 0.9**k,
    ),
    "exponential with cool-down": (
        lambda: ExponentialSchedule(0.5, cooldown="2 epochs"),
        lambda k: 0.5 ** min(k // STEPS, EPOCHS - 2),
    ),
    "polynomial": (lambda: PolynomialSchedule(2, 0.1), lambda k: 0.1 + 0.9 * (1 - k / TOTAL) ** 2),
    "linear by epochs": (lambda: PolynomialSchedule(cadence="epoch"), lambda k: 1 - (k // STEPS) / EPOCHS),
    "linear by epochs, warm-up by epochs": (
        lambda: PolynomialSchedule(cadence="epoch", warmup="1 epoch"),
        lambda k: 0.5 if k < STEPS else 1 - (k // STEPS - 1) / (EPOCHS - 1),
    ),
    "cosine": (lambda: CosineSchedule(0.01), lambda k: half_wave(1, 0.01, k / TOTAL)),
    "cosine with warm-up and cool-down": (
        lambda: CosineSchedule(0.1, warmup="3 steps", cooldown="1 epoch"),
        cosine_with_both,
    ),
    "cosine by epochs, warm-up by steps": (
        lambda: CosineSchedule(cadence="epoch", warmup="2 steps"),
        lambda k: min(1, (k + 1) / 3) * half_wave(1, 0, max(0, k // STEPS - 2 / STEPS) / (EPOCHS - 2 / STEPS)),
    ),
    "constant with cool-down to 0": (lambda: ConstantSchedule(cooldown="8 steps", cooldown_to=0), constant_to_zero),
    "constant with warm-up by epochs": (
        lambda: ConstantSchedule(cadence="epoch", warmup="2 epochs", warmup_from=0.0),
        lambda k: min(1, (k // STEPS) / 2),
    ),
    "cosine, then cool-down below its end": (
        lambda: CosineSchedule(0.5, cooldown="2 epochs", cooldown_to=0.1),
        lambda k: half_wave(1, 0.5, k / 10) if k < 10 else 0.5 - 0.4 * (k - 10) / 10,
    ),
    "function": (lambda: FunctionSchedule(lambda p: 1 - p**3), lambda k: 1 - (k / TOTAL) ** 3),
    "function of the count": (
        lambda: Schedule(lambda n: 1 / (1 + n), of="count", cadence="step", warmup="4 steps"),
        lambda k: min(1, (k + 1) / 5) / (1 + k),
    ),
    "one-cycle": (lambda: OneCycleSchedule(0.25, 10, 10), one_cycle),
    "flat-cosine": (
        lambda: FlatCosineSchedule(0.5, 0.1),
        lambda k: 1 if k < 10 else half_wave(1, 0.1, (k - 10) / 10),
    ),
    "a length of its own": (
        lambda: CosineSchedule(length="8 steps"),
        lambda k: half_wave(1, 0, min(k / 8, 1)),
    ),
    "a length in epochs": (
        lambda: PolynomialSchedule(final_ratio=0.5, length="2 epochs"),
        lambda k: 1 - 0.5 * min(k / 10, 1),
    ),
}

AT_ZERO = "ignore:The learning rate was 0:UserWarning"  # the schedule has ended, and the fit goes on


@pytest.mark.filterwarnings(AT_ZERO)
@pytest.mark.parametrize("name", FORMULAS)
def test_every_step_has_the_learning_rate_of_the_formula(name: str) -> None:
    make, formula = FORMULAS[name]
    assert Setting(make()).fit() == pytest.approx([LR * formula(k) for k in range(TOTAL)], rel=1e-12, abs=1e-15)


BOTH: dict[str, tuple[Callable[..., Schedule], str, Callable[[float], float]]] = {
    "constant": (ConstantSchedule, "count", lambda n: 1.0),
    "step": (lambda **more: StepSchedule(3, gamma=0.5, cadence="step", **more), "count", lambda n: 0.5 ** (n // 3)),
    "multi-step": (
        lambda **more: MultiStepSchedule([2, 9], gamma=0.5, cadence="step", **more),
        "count",
        lambda n: 0.5 ** ((n >= 2) + (n >= 9)),
    ),
    "exponential": (lambda **more: ExponentialSchedule(0.9, cadence="step", **more), "count", lambda n: 0.9**n),
    "polynomial": (lambda **more: PolynomialSchedule(2, 0.1, **more), "progress", lambda x: 0.1 + 0.9 * (1 - x) ** 2),
    "cosine": (lambda **more: CosineSchedule(0.1, **more), "progress", lambda x: half_wave(1, 0.1, x)),
    "function": (lambda **more: FunctionSchedule(lambda x: 1 - x / 2, **more), "progress", lambda x: 1 - x / 2),
    "one-cycle": (
        lambda **more: OneCycleSchedule(0.25, 10, 10, **more),
        "progress",
        lambda x: half_wave(0.1, 1, x / 0.25) if x < 0.25 else half_wave(1, 0.01, (x - 0.25) / 0.75),
    ),
    "flat-cosine": (
        lambda **more: FlatCosineSchedule(0.5, 0.1, **more),
        "progress",
        lambda x: 1 if x < 0.5 else half_wave(1, 0.1, (x - 0.5) / 0.5),
    ),
    "plateau that was never reached": (
        lambda **more: PlateauSchedule("train/loss", patience=99, **more),
        "count",
        lambda n: 1.0,
    ),
}


@pytest.mark.parametrize("to", [None, 0.0, 0.25])
@pytest.mark.parametrize("unit", ["steps", "epochs"])
@pytest.mark.parametrize("name", BOTH)
def test_every_ready_one_with_warm_up_and_cool_down(name: str, unit: str, to: float | None) -> None:
    """A ramp up to where the curve is, the curve, and from where it is then a ramp to the end."""
    make, of, curve = BOTH[name]
    up, down = (3, 4) if unit == "steps" else (STEPS, STEPS)
    texts = (f"{up} steps", f"{down} steps") if unit == "steps" else ("1 epoch", "1 epoch")
    expected = []
    for k in range(TOTAL):
        last = min(k, TOTAL - down)
        at = curve(last if of == "count" else max(last - up, 0) / (TOTAL - up - down))
        value = at * min(1, (k + 1) / (up + 1))
        if k > TOTAL - down and to is not None:
            value = at + (to - at) * (k - (TOTAL - down)) / down
        expected.append(LR * value)
    lrs = Setting(make(warmup=texts[0], cooldown=texts[1], cooldown_to=to)).fit()
    assert lrs == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", ["cosine", "polynomial", "one-cycle", "cosine with warm-up and cool-down"])
def test_a_fit_that_is_given_in_steps_is_as_long(name: str) -> None:
    make, formula = FORMULAS[name]
    lrs = Setting(make()).fit(steps=TOTAL)
    assert lrs == pytest.approx([LR * formula(k) for k in range(TOTAL)], rel=1e-12)


def test_the_warm_up_begins_where_the_curve_begins() -> None:
    lrs = Setting(OneCycleSchedule(0.5, 10, 10, warmup="4 steps")).fit()
    body = TOTAL - 4
    expected = [0.1 * (k + 1) / 5 for k in range(4)]
    expected += [half_wave(0.1, 1, i / body / 0.5) for i in range(body // 2)]
    assert lrs[: len(expected)] == pytest.approx([LR * factor for factor in expected], rel=1e-12)


def test_one_cycle_moves_the_momentum_or_the_first_beta() -> None:
    x = [k / TOTAL for k in range(TOTAL)]
    expected = [half_wave(0.95, 0.85, p / 0.3) if p < 0.3 else half_wave(0.85, 0.95, (p - 0.3) / 0.7) for p in x]
    for adam in (False, True):
        setting = Setting(OneCycleSchedule(), adam=adam)
        setting.fit()
        assert setting.momenta == pytest.approx(expected, rel=1e-12)
    assert Setting(OneCycleSchedule(), adam=True).group["betas"][1] == 0.999
    setting = Setting(OneCycleSchedule(momentum=None))
    setting.fit()
    assert set(setting.momenta) == {0.9}


def test_momentum_that_does_not_exist_is_refused() -> None:
    model = tiny_classifier()
    trainer = cadenza.Trainer(
        model, torch.optim.Adagrad(model.parameters()), nn.CrossEntropyLoss(), callbacks=[OneCycleSchedule()]
    )
    with pytest.raises(ValueError, match="momentum=None"):
        trainer.fit(loader(), epochs=1)


def test_the_ready_ones_agree_with_torchs() -> None:
    pairs: list[tuple[Schedule, Callable[[Any], Any], str]] = [
        (StepSchedule(2, 0.3), lambda o: lr_scheduler.StepLR(o, 2, 0.3), "epoch"),
        (MultiStepSchedule([1, 3]), lambda o: lr_scheduler.MultiStepLR(o, [1, 3]), "epoch"),
        (ExponentialSchedule(0.9), lambda o: lr_scheduler.ExponentialLR(o, 0.9), "epoch"),
        (PolynomialSchedule(2), lambda o: lr_scheduler.PolynomialLR(o, TOTAL, 2), "step"),
        (CosineSchedule(0.1), lambda o: lr_scheduler.CosineAnnealingLR(o, TOTAL, LR * 0.1), "step"),
    ]
    for ours, factory, cadence in pairs:
        theirs = Schedule(torch=factory, cadence=cadence)
        assert Setting(ours).fit() == pytest.approx(Setting(theirs).fit(), rel=1e-9), ours.name


# Real steps only ----------------------------------------------------------------------------------------------------


class Hold(Callback):
    """Holds all but every ``n``-th batch."""

    asks = frozenset({"hold_step"})

    def __init__(self, n: int) -> None:
        self.n = n

    def after_backward(self, run: Any) -> None:
        if run.batches_seen % self.n:
            run.hold_step()


class SayingHold(Hold):
    def steps_in(self, batches: int) -> int:
        return -(-batches // self.n)


class Skip(Callback):
    """Asks away a part of certain batches."""

    def __init__(self, batches: set[int], request: str, point: str = "before_train_iter") -> None:
        self.batches, self.request, self.point = batches, request, point

    def plays(self) -> dict[str, Callable[[Any], Any]]:
        return {self.point: self._ask}

    def _ask(self, run: Any) -> None:
        if run.clock.batches in self.batches:
            getattr(run, self.request)()


def test_accumulation_moves_it_once_a_step() -> None:
    lrs = Setting(CosineSchedule(0.1, warmup="1 epoch"), SayingHold(2)).fit()
    total, warm = 3 * EPOCHS, 3  # batches 0 and 1, 2 and 3, and 4 alone, when the epoch ends
    expected = [(k + 1) / (warm + 1) for k in range(warm)]
    expected += [half_wave(1, 0.1, (k - warm) / (total - warm)) for k in range(warm, total)]
    assert lrs == pytest.approx([LR * factor for factor in expected], rel=1e-12)


def test_the_accumulation_of_the_library_moves_it_once_a_step() -> None:
    lrs = Setting(CosineSchedule(length="12 steps"), Accumulate(2)).fit()
    assert lrs == pytest.approx([LR * half_wave(1, 0, k / 12) for k in range(12)], rel=1e-12)


def test_steps_that_are_held_by_nobody_knows_how_many_are_refused() -> None:
    with pytest.raises(ValueError, match="Hold holds steps and does not say how many") as caught:
        Setting(CosineSchedule(), Hold(2)).fit()
    assert 'length="1000 steps"' in str(caught.value)
    assert len(Setting(CosineSchedule(), Hold(2)).fit(steps=4)) == 4
    assert len(Setting(StepSchedule(1), Hold(2)).fit()) == 12


@pytest.mark.parametrize("request_name", ["skip_step", "skip_backward", "skip_batch"])
@pytest.mark.parametrize("kind", ["curve", "torch"])
def test_a_skipped_step_does_not_move_it(request_name: str, kind: str) -> None:
    schedule = (
        ExponentialSchedule(0.9, cadence="step")
        if kind == "curve"
        else Schedule(torch=lambda o: lr_scheduler.ExponentialLR(o, 0.9), cadence="step")
    )
    lrs = Setting(schedule, Skip({0, 3, 4, 11}, request_name)).fit()
    assert lrs == pytest.approx([LR * 0.9**k for k in range(TOTAL - 4)], rel=1e-12)


class FP16(Callback):
    """A real scaler, and gradients that it must withhold in the batches 0, 1 and 7."""

    def before_run(self, run: Any) -> None:
        run.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)

    def after_backward(self, run: Any) -> None:
        if run.clock.batches in (0, 1, 7):
            run.optimizer.param_groups[0]["params"][0].grad.fill_(float("inf"))


@pytest.mark.parametrize("cadence", ["step", "epoch"])
def test_a_withheld_step_does_not_move_it(cadence: str) -> None:
    schedule = Schedule(torch=lambda o: lr_scheduler.ExponentialLR(o, 0.5), cadence=cadence)
    with_curve = Setting(ExponentialSchedule(0.5, cadence=cadence), FP16())
    with_torch = Setting(schedule, FP16())
    counts = range(TOTAL - 3) if cadence == "step" else [0] * 3 + [1] * 4 + [2] * 5 + [3] * 5
    for setting in (with_curve, with_torch):
        assert setting.fit() == pytest.approx([LR * 0.5**n for n in counts], rel=1e-12)


class EndLate(Callback):
    """Ends the epoch when its last iteration is over, so that a held step is made only then."""

    order = 1000

    def after_iter(self, run: Any) -> None:
        if run.stage == "train" and run.batches_seen == 3:
            run.end_epoch()


def test_a_step_that_is_made_after_the_last_iteration_counts() -> None:
    for schedule in (
        Schedule(torch=lambda o: lr_scheduler.ExponentialLR(o, 0.5), cadence="step"),
        ExponentialSchedule(0.5, cadence="step"),
    ):
        setting = Setting(schedule, Hold(2), EndLate())
        assert setting.fit(epochs=2) == pytest.approx([LR * 0.5**k for k in range(4)])
        assert setting.trainer.clock.steps == 4


def test_nobody_plays_inside_the_step_so_that_it_stays_closed() -> None:
    for schedule in (CosineSchedule(), PlateauSchedule(), Schedule(torch=lambda o: None, cadence="step")):
        inside = {"forward", "loss", "backward", "step", "zero_grad"}
        assert not [point for point in schedule.plays() if point.split("_", 1)[1] in inside]


def test_what_a_subclass_does_where_the_rate_is_set_is_played_after_that() -> None:
    class Telling(ExponentialSchedule):
        def before_train_iter(self, run: Any) -> None:
            told.append(run.optimizer.param_groups[0]["lr"])

    told: list[float] = []
    used = Setting(Telling(0.5, cadence="step")).fit(epochs=1)
    assert told == used == pytest.approx([LR * 0.5**k for k in range(STEPS)])


# Torch's own --------------------------------------------------------------------------------------------------------

TORCH: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3, 9]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=6),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 10, 2),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 7),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=TOTAL + 1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, step_size_up=4),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.MultiStepLR(o, [1, 2])], [2]
    ),
}


def by_hand(factory: Callable[[Any], Any], cadence: str) -> tuple[Setting, list[float]]:
    """A plain loop with torch's scheduler, as its documentation shows it."""
    setting = Setting()
    (optimizer,) = setting.optimizers
    scheduler = factory(optimizer)
    criterion = nn.CrossEntropyLoss()
    for _ in range(EPOCHS):
        for inputs, targets in loader():
            criterion(setting.model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            if cadence == "step":
                scheduler.step()
        if cadence == "epoch":
            scheduler.step()
    return setting, [float(value) for value in scheduler.get_last_lr()]


@pytest.mark.filterwarnings(AT_ZERO)
@pytest.mark.parametrize("cadence", ["step", "epoch"])
@pytest.mark.parametrize("name", TORCH)
def test_torchs_schedulers_give_what_they_give_alone(name: str, cadence: str) -> None:
    alone, ends_at = by_hand(TORCH[name], cadence)
    setting = Setting(Schedule(torch=TORCH[name], cadence=cadence))
    assert setting.fit() == alone.lrs
    assert setting.momenta == alone.momenta
    assert [group["lr"] for group in setting.optimizers[0].param_groups] == ends_at
    for ours, theirs in zip(setting.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


class Scores(Callback):
    """Logs what it is told, one value an epoch; None leaves an epoch out."""

    def __init__(self, values: list[float | None], name: str = "val/score") -> None:
        self.values, self.metric = values, name

    def after_train_epoch(self, run: Any) -> None:
        value = self.values[run.epoch]
        if value is not None:
            run.log(self.metric, value)


def test_torchs_plateau_follows_its_metric() -> None:
    values = [1.0, 0.9, 0.95, 0.95, 0.95, 0.95, 0.5]
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=LR)
    alone, expected = lr_scheduler.ReduceLROnPlateau(optimizer, "min", 0.5, 1), []
    for value in values:
        expected.append(optimizer.param_groups[0]["lr"])
        alone.step(value)
    schedule = Schedule(torch=lambda o: lr_scheduler.ReduceLROnPlateau(o, "min", 0.5, 1), monitor="val/score")
    setting = Setting(schedule, Scores(values))
    assert setting.fit(epochs=len(values))[::STEPS] == expected
    assert setting.group["lr"] == optimizer.param_groups[0]["lr"]


def test_an_epoch_that_was_cut_short_does_not_step_torchs_scheduler() -> None:
    setting = Setting(
        Schedule(torch=lambda o: lr_scheduler.ExponentialLR(o, 0.5), cadence="epoch"), Skip({7}, "stop", "after_iter")
    )
    assert setting.fit() == [LR] * STEPS + [LR / 2] * 2
    assert setting.group["lr"] == LR / 2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Schedule(), "either a function of a number or torch="),
        (lambda: Schedule(Cosine(), torch=TORCH["StepLR"]), "either a function of a number or torch="),
        (lambda: Schedule(TORCH["StepLR"](Setting().optimizers[0])), "a scheduler of torch is made by a function"),
        (lambda: Schedule(torch=TORCH["StepLR"]), 'needs cadence="step" or cadence="epoch"'),
        (lambda: Schedule(torch=TORCH["StepLR"], cadence="batch"), 'needs cadence="step" or cadence="epoch"'),
        (lambda: Schedule(torch=TORCH["StepLR"], cadence="step", monitor="val/loss"), "one of the two"),
        (lambda: Schedule(torch=TORCH["StepLR"], cadence="step", warmup="1 epoch"), "warmup cannot be combined"),
        (lambda: Schedule(torch=TORCH["StepLR"], cadence="step", groups=[0]), "groups cannot be combined"),
        (lambda: Schedule(Cosine(), monitor="val/loss"), "use PlateauSchedule"),
        (lambda: Schedule(lambda n: 1, of="count"), "say which one the schedule counts"),
        (lambda: CosineSchedule(cadence="batch"), 'cadence is "step" or "epoch"'),
        (lambda: CosineSchedule(warmup="5 minutes"), "warmup is given in steps or epochs"),
        (lambda: CosineSchedule(warmup=500), "is not a duration"),
        (lambda: CosineSchedule(warmup_from=0.1), "warmup_from=.* needs a warmup"),
        (lambda: CosineSchedule(warmup="2 steps", warmup_from=2), "warmup_from must be a number from 0 to 1"),
        (lambda: CosineSchedule(cooldown_to=0.1), "cooldown_to=.* needs a cooldown"),
        (lambda: CosineSchedule(cooldown="2 steps", cooldown_to=-1), "cooldown_to must be a number of at least 0"),
        (lambda: CosineSchedule(length="0 steps"), "more than 0"),
        (lambda: StepSchedule(3, length="9 epochs"), "length needs a cooldown"),
        (lambda: CosineSchedule(optimizer=-1), "the number of one, from 0, or None"),
        (lambda: CosineSchedule(groups=[]), "groups is a list of names or numbers"),
        (lambda: CosineSchedule(groups="head"), "groups is a list of names or numbers"),
        (lambda: CosineSchedule(groups=[1.0]), "names or numbers from 0"),
        (lambda: PlateauSchedule(monitor=""), "monitor names a metric"),
        (lambda: PlateauSchedule(patience=0), "patience"),
    ],
)
def test_bad_arguments_are_refused_at_construction(wrong: Callable[[], Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        wrong()


def test_a_torch_factory_that_does_not_fit_is_refused() -> None:
    for factory, monitor, says in (
        (lambda o: None, None, "it made None"),
        (lambda o: lr_scheduler.StepLR(Setting().optimizers[0], 3), None, "makes a scheduler for its optimizer"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o), None, "give monitor="),
        (lambda o: lr_scheduler.StepLR(o, 3), "train/loss", "leave out monitor="),
    ):
        schedule = Schedule(torch=factory, monitor=monitor, cadence=None if monitor else "step")
        with pytest.raises((TypeError, ValueError), match=says):
            Setting(schedule).fit()


# The length ---------------------------------------------------------------------------------------------------------


class Endless:
    """A loader that does not know its length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(loader())


def test_a_length_that_cannot_be_known_is_refused_with_what_to_do() -> None:
    for schedule in (CosineSchedule(), StepSchedule(1, warmup="1 epoch", cadence="step")):
        with pytest.raises(ValueError, match="Endless does not know its length") as caught:
            Setting(schedule).trainer.fit(Endless(), epochs=2)
        assert 'length="1000 steps"' in str(caught.value)
    setting = Setting(CosineSchedule(length="10 steps"))
    setting.trainer.fit(Endless(), epochs=2)
    assert setting.lrs == pytest.approx([LR * half_wave(1, 0, k / 10) for k in range(10)])
    setting = Setting(CosineSchedule())
    setting.trainer.fit(Endless(), steps=10)
    assert setting.lrs == pytest.approx([LR * half_wave(1, 0, k / 10) for k in range(10)])
    setting = Setting(CosineSchedule(cadence="epoch"))
    setting.trainer.fit(Endless(), epochs=2)
    assert setting.lrs == pytest.approx([LR] * STEPS + [LR / 2] * STEPS)


def test_a_warm_up_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="warm-up of 3 epochs and the cool-down of 5 steps leave nothing of the 4 ep"):
        Setting(CosineSchedule(warmup="3 epochs", cooldown="5 steps")).fit()


def test_a_loop_of_ones_own() -> None:
    setting = Setting(CosineSchedule())
    with setting.trainer.run(epochs=EPOCHS) as run:
        for _ in run.epochs():
            for _ in run.train(loader()):
                run.forward()
                run.backward()
                run.step()
    assert setting.lrs == pytest.approx([LR * half_wave(1, 0, k / TOTAL) for k in range(TOTAL)])


def test_all_steps_of_one_iteration_have_one_rate() -> None:
    for schedule in (
        ExponentialSchedule(0.5, cadence="step"),
        Schedule(torch=lambda o: lr_scheduler.ExponentialLR(o, 0.5), cadence="step"),
    ):
        setting = Setting(schedule)
        with setting.trainer.run(epochs=1) as run:
            for _ in run.epochs():
                for _ in run.train(loader(2)):
                    for _ in range(2):
                        run.forward()
                        run.backward()
                        run.step()
        assert setting.lrs == pytest.approx([LR, LR, LR / 4, LR / 4])


def test_a_limit_that_is_changed_on_the_way_changes_the_length() -> None:
    setting = Setting(PolynomialSchedule())
    setting.trainer.on("before_epoch")(lambda run: run.limit(steps=10) if run.epoch == 1 else None)
    setting.fit()
    expected = [1 - k / 20 for k in range(5)] + [1 - k / 15 for k in range(5, 15)]
    assert setting.lrs == pytest.approx([LR * factor for factor in expected])


# Plateau ------------------------------------------------------------------------------------------------------------


def epochs_of(setting: Setting, count: int) -> list[float]:
    return setting.fit(epochs=count)[::STEPS]


def test_a_plateau_lowers_the_rate_at_the_pth_bad_check() -> None:
    values = [0.5, 0.6, 0.6, 0.55, 0.6, 0.7]  # higher is better; equal is not
    setting = Setting(PlateauSchedule("val/score", 0.1, patience=2), Scores([*values, 0.0]))
    assert epochs_of(setting, 7) == pytest.approx([LR] * 4 + [LR * 0.1] * 3)


def test_a_plateau_does_not_count_epochs_in_which_nothing_was_measured() -> None:
    values = [0.5, None, None, 0.5, None, 0.4, None]
    setting = Setting(PlateauSchedule("val/score", 0.5, patience=2), Scores(values))
    assert epochs_of(setting, 7) == [LR] * 6 + [LR / 2]


def test_a_plateau_has_a_floor_and_a_warm_up() -> None:
    schedule = PlateauSchedule("val/score", 0.1, patience=1, min_lr=0.02, warmup="2 steps", warmup_from=0.5)
    lrs = Setting(schedule, Scores([1.0] * EPOCHS)).fit()
    assert lrs == pytest.approx([LR / 2, LR * 0.75, *[LR] * 8, *[LR * 0.1] * 5, *[0.02] * 5])
    low = Setting(PlateauSchedule("val/score", 0.1, patience=1, min_lr=1.0), Scores([1.0] * EPOCHS))
    assert low.fit() == [LR] * TOTAL  # the floor never raises a rate


def test_a_plateau_with_a_cool_down() -> None:
    schedule = PlateauSchedule("val/score", 0.5, patience=1, cooldown="1 epoch", cooldown_to=0.0)
    lrs = Setting(schedule, Scores([1.0] * EPOCHS)).fit()
    assert lrs[15:] == pytest.approx([LR * 0.25 * (1 - k / 5) for k in range(5)])


def test_the_mode_is_inferred_from_the_name_and_shown() -> None:
    assert "val/loss, lower is better (inferred from its name)" in PlateauSchedule().explain()
    assert "val/f1, higher is better (inferred" in PlateauSchedule("val/f1").explain()
    assert PlateauSchedule("val/f1", mode="min").explain().endswith("val/f1, lower is better")
    assert "lower is better" in str(Setting(PlateauSchedule()).trainer.explain())


def test_a_plateau_of_the_real_validation_loss() -> None:
    setting = Setting(PlateauSchedule(patience=1, min_delta=100.0))
    setting.trainer.fit(loader(), loader(), epochs=3)
    assert setting.lrs[::STEPS] == pytest.approx([LR, LR, LR * 0.1])


def test_an_unknown_metric_is_an_error_with_the_nearest_name() -> None:
    setting = Setting(PlateauSchedule("val/los"), Recorder(points=["after_best"]))  # which may log anything
    with pytest.raises(KeyError, match="did you mean 'val/loss'"):
        setting.trainer.fit(loader(), loader(), epochs=2)


def test_a_stop_in_mid_epoch_is_no_check() -> None:
    setting = Setting(PlateauSchedule("train/loss", patience=1, min_delta=100.0), Skip({7}, "stop", "after_iter"))
    setting.fit(epochs=2)
    assert setting.lrs[-1] == LR
    setting.trainer.fit(loader(), epochs=2)
    assert setting.lrs[-STEPS] == pytest.approx(LR * 0.1)


# Groups and optimizers ----------------------------------------------------------------------------------------------


def test_each_group_keeps_its_own_initial_rate() -> None:
    setting = Setting(ExponentialSchedule(0.5), split=True)
    setting.fit(epochs=2)
    assert setting.rows[0] == [LR / 4, LR]
    assert setting.rows[-1] == [LR / 8, LR / 2]


def test_groups_by_name_and_by_number() -> None:
    for head in (["head"], [1]):
        setting = Setting(ExponentialSchedule(0.5, groups=head), split=True)
        setting.fit(epochs=2)
        assert setting.rows[-1] == [LR / 4, LR / 2]
    setting = Setting(StepSchedule(1, groups=["body"]), ExponentialSchedule(0.5, groups=["head"]), split=True)
    setting.fit(epochs=2)
    assert setting.rows[-1] == pytest.approx([LR / 40, LR / 2])


def test_one_schedule_for_each_optimizer() -> None:
    setting = Setting(CosineSchedule(optimizer=0), CosineSchedule(0.5, optimizer=1), two=True)
    setting.fit()
    for k, (first, second) in enumerate(setting.rows):
        assert first == pytest.approx(LR * half_wave(1, 0, k / TOTAL))
        assert second == pytest.approx(LR * half_wave(1, 0.5, k / TOTAL))
    both = Setting(Schedule(torch=TORCH["ExponentialLR"], cadence="epoch"), two=True)
    both.fit(epochs=2)
    assert both.rows[-1] == pytest.approx([LR * 0.9] * 2)
    one = Setting(Schedule(torch=TORCH["ExponentialLR"], cadence="epoch", optimizer=1), two=True)
    one.fit(epochs=2)
    assert one.rows[-1] == pytest.approx([LR, LR * 0.9])


def test_a_group_that_is_added_later_joins() -> None:
    setting = Setting(ExponentialSchedule(0.5))
    extra = nn.Parameter(torch.zeros(1))
    setting.trainer.on("before_epoch")(
        lambda run: run.optimizer.add_param_group({"params": [extra], "lr": 8.0}) if run.epoch == 2 else None
    )
    setting.fit(epochs=4)
    assert setting.rows[-1] == [LR / 8, 1.0]


def test_groups_and_optimizers_that_do_not_exist_are_refused_before_the_first_step() -> None:
    for schedule, says in (
        (CosineSchedule(optimizer=1), "there is no optimizer 1: the trainer has 1"),
        (CosineSchedule(groups=[2]), "there is no parameter group 2: the optimizer has 2"),
        (CosineSchedule(groups=["haed"]), "did you mean 'head'"),
    ):
        setting = Setting(schedule, split=True)
        with pytest.raises(ValueError, match=says):
            setting.fit()
        assert setting.lrs == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {}),
        ({"optimizer": 0}, {}),
        ({}, {"groups": ["head"]}),
        ({"optimizer": 0}, {"optimizer": 0}),
        ({"optimizer": 0}, {"optimizer": 0, "groups": ["head"]}),
        ({"groups": ["head", "body"]}, {"groups": ["head"]}),
        ({"groups": [1]}, {"groups": ["head"]}),
    ],
)
def test_two_owners_of_one_learning_rate_are_refused(one: dict[str, Any], other: dict[str, Any]) -> None:
    with pytest.raises(CallbackError, match="both own"):
        Setting(CosineSchedule(**one), StepSchedule(1, **other), split=True).fit()
    with pytest.raises(CallbackError, match="both own"):
        Setting(StepSchedule(1, **other), When(CosineSchedule(**one), start="1 step"), split=True).fit()


def test_a_rate_that_is_a_tensor_stays_that_tensor() -> None:
    setting = Setting(ExponentialSchedule(0.5))
    rate = setting.group["lr"] = torch.tensor(LR)
    setting.fit(epochs=3)
    assert setting.group["lr"] is rate
    assert rate.item() == pytest.approx(LR / 4)
    assert isinstance(setting.group["initial_lr"], float)


# Several fits, windows, resuming ------------------------------------------------------------------------------------


def test_a_second_fit_is_a_schedule_of_its_own() -> None:
    setting = Setting(CosineSchedule(warmup="2 steps"))
    first, second = setting.fit(epochs=2), setting.fit(epochs=2)
    assert first == second
    assert len(setting.fit(epochs=1)) == STEPS
    assert setting.lrs[-STEPS:] == pytest.approx([LR / 3, LR * 2 / 3, *[LR * half_wave(1, 0, i / 3) for i in range(3)]])


@pytest.mark.filterwarnings(AT_ZERO)
@pytest.mark.parametrize("name", ["multi-step", "exponential", "a length of its own", "step", "function of the count"])
def test_a_schedule_without_an_end_or_with_its_own_goes_on_over_fits(name: str) -> None:
    make, formula = FORMULAS[name]
    setting = Setting(make())
    assert setting.fit(epochs=1) + setting.fit(epochs=3) == pytest.approx([LR * formula(k) for k in range(TOTAL)])


def test_torchs_schedulers_and_plateaus_go_on_over_fits() -> None:
    for name in ("StepLR", "OneCycleLR", "MultiStepLR"):
        setting = Setting(Schedule(torch=TORCH[name], cadence="step"))
        assert setting.fit(epochs=1) + setting.fit(epochs=3) == by_hand(TORCH[name], "step")[0].lrs
    setting = Setting(PlateauSchedule("val/score", 0.5, patience=2), Scores([1.0] * EPOCHS))
    assert (setting.fit(epochs=2) + setting.fit(epochs=2))[::STEPS] == [LR, LR, LR, LR / 2]


def test_a_window_of_the_clock() -> None:
    setting = Setting(When(PolynomialSchedule(), start="1 epoch", stop="3 epochs"))
    expected = [1] * 5 + [1 - k / TOTAL for k in range(5, 15)] + [1 - 14 / TOTAL] * 5
    assert setting.fit() == pytest.approx([LR * factor for factor in expected])
    schedule = Schedule(torch=lambda o: lr_scheduler.ExponentialLR(o, 0.5), cadence="step")
    assert Setting(When(schedule, start="18 steps")).fit()[-3:] == [LR, LR, LR / 2]


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint makes of it."""
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    return loaded


RESUMED: dict[str, Callable[[], Schedule]] = {
    "cosine": lambda: CosineSchedule(0.1, warmup="7 steps", cooldown="1 epoch"),
    "cosine by epochs": lambda: CosineSchedule(0.1, cadence="epoch"),
    "one-cycle": OneCycleSchedule,
    "own length": lambda: PolynomialSchedule(length="18 steps"),
    "multi-step": lambda: MultiStepSchedule([1, 3], warmup="2 epochs"),
    "plateau": lambda: PlateauSchedule("train/loss", 0.5, patience=2, min_delta=100.0),
    "torch by step": lambda: Schedule(torch=TORCH["SequentialLR"], cadence="step"),
    "torch's milestones": lambda: Schedule(torch=TORCH["MultiStepLR"], cadence="epoch"),
    "torch's one cycle": lambda: Schedule(torch=TORCH["OneCycleLR"], cadence="step"),
    "torch's linear": lambda: Schedule(torch=TORCH["LinearLR"], cadence="step"),
    "torch's plateau": lambda: Schedule(
        torch=lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=100.0), monitor="train/loss"
    ),
}


@pytest.mark.parametrize("with_clock", [False, True])
@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_training_goes_on_to_the_last_bit(name: str, with_clock: bool) -> None:
    whole = Setting(RESUMED[name]())
    whole.fit()
    first_schedule, second_schedule = RESUMED[name](), RESUMED[name]()
    first = Setting(first_schedule, Skip({2 * STEPS}, "stop", "after_epoch"))
    first.fit()
    assert len(first.lrs) == 2 * STEPS
    second = Setting(second_schedule)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizers[0].load_state_dict(copy.deepcopy(first.optimizers[0].state_dict()))
    second_schedule.load_state_dict(stored(first_schedule.state_dict()))
    if with_clock:
        second.trainer.clock.load_state_dict(first.trainer.clock.state_dict())
    second.fit(epochs=2)
    assert first.lrs + second.lrs == whole.lrs
    assert first.momenta + second.momenta == whole.momenta
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_state_that_is_loaded_into_a_begun_run_counts_from_there() -> None:
    first_schedule, second_schedule = CosineSchedule(), CosineSchedule()
    first = Setting(first_schedule, Skip({2 * STEPS}, "stop", "after_epoch"))
    first.fit()
    second = Setting(second_schedule)
    second.trainer.on("before_run")(lambda run: second_schedule.load_state_dict(stored(first_schedule.state_dict())))
    assert second.fit(epochs=2) == pytest.approx([LR * half_wave(1, 0, k / TOTAL) for k in range(10, TOTAL)])


def test_a_state_from_the_end_of_a_schedule_begins_a_new_one() -> None:
    first_schedule, second_schedule = CosineSchedule(), CosineSchedule()
    lrs = Setting(first_schedule).fit(epochs=2)
    second_schedule.load_state_dict(stored(first_schedule.state_dict()))
    assert Setting(second_schedule).fit(epochs=2) == lrs


def test_one_that_is_added_on_the_way_spans_the_rest_of_the_fit() -> None:
    schedule = PolynomialSchedule()
    setting = Setting(schedule)
    setting.fit(epochs=1)
    setting.trainer.remove(schedule)
    setting.group["lr"] = LR
    setting.trainer.on("after_epoch")(lambda run: setting.trainer.add(schedule) if run.clock.epochs == 3 else None)
    lrs = setting.fit(epochs=4)
    assert lrs == pytest.approx([LR] * 10 + [LR * (1 - k / 10) for k in range(10)])


def test_an_error_in_the_middle_leaves_a_schedule_that_can_be_used_again() -> None:
    setting = Setting(CosineSchedule())
    handle = setting.optimizers[0].register_step_pre_hook(lambda *_: 1 / 0 if len(setting.lrs) == 8 else None)
    with pytest.raises(ZeroDivisionError):
        setting.fit()
    handle.remove()
    assert setting.fit(epochs=2) == pytest.approx([LR * half_wave(1, 0, k / 10) for k in range(10)])


# All of them --------------------------------------------------------------------------------------------------------

UNSEEN = "ignore:.* watches no metric:UserWarning"  # it was asked away, and the run says so


@pytest.mark.filterwarnings(UNSEEN)
@pytest.mark.parametrize(
    "way", [pytest.param("step", marks=pytest.mark.long), pytest.param("epoch", marks=pytest.mark.long), "metric"]
)
def test_torchs_schedulers_behave_as_callbacks_should(way: str) -> None:
    if way == "metric":
        schedule = Schedule(torch=lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0), monitor="val/loss")
    else:
        schedule = Schedule(torch=TORCH["MultiStepLR"], cadence=way)
    check_callback(schedule)


def test_they_say_what_they_do() -> None:
    score = str(Setting(CosineSchedule(0.01, warmup="500 steps", cooldown="1 epoch", optimizer=0)).trainer.explain())
    assert "CosineSchedule[0]" in score
    assert "owns lr[0]" in score
    assert "cosine to 0.01, every step, warm-up of 500 steps, cool-down of 1 epoch, over each fit" in score
    assert Schedule(torch=TORCH["StepLR"], cadence="epoch").explain() == "torch's scheduler, after every epoch"
    assert "in which val/loss was measured" in Schedule(torch=TORCH["StepLR"], monitor="val/loss").explain()
    assert OneCycleSchedule(groups=["head"]).owns == {"lr[0][head]", "momentum[0][head]"}


def test_a_curve_of_ones_own_in_a_schedule() -> None:
    class Sawtooth(Curve):
        of = "count"

        def __call__(self, x: float) -> float:
            return 1 - (x % 4) / 4

    assert Setting(Schedule(Sawtooth(), cadence="step")).fit(epochs=1) == [LR, LR * 0.75, LR * 0.5, LR * 0.25, LR]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_rate_on_a_device_is_set_without_waiting_for_it() -> None:
    model = tiny_classifier()
    rate = torch.tensor(LR, device="cuda")
    optimizer = torch.optim.Adam(model.cuda().parameters(), lr=rate, capturable=True)
    trainer = cadenza.Trainer(
        model, optimizer, nn.CrossEntropyLoss(), callbacks=[CosineSchedule(warmup="3 steps")], device="cuda"
    )
    batches = [(inputs.cuda(), targets.cuda()) for inputs, targets in loader()]
    watched = trainer.on("after_train_iter")
    watched(lambda run: torch.cuda.set_sync_debug_mode("error" if run.batches_seen < STEPS else "default"))
    try:
        trainer.fit(batches, epochs=1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(LR * half_wave(1, 0, (STEPS - 1 - 3) / (STEPS - 3)))
