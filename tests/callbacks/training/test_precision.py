"""Precision: what computes in which format, and steps that the fp16 scaler withholds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from cadenza import Callback, CallbackError, MainCallback, Trainer
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.callbacks.training.clip import GradientClip
from cadenza.callbacks.training.ema import EMA
from cadenza.callbacks.training.precision import Precision
from cadenza.testing import Recorder, check_callback, tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def made(*callbacks, optimizers=None, model=None, **more):
    model = tiny_classifier() if model is None else model
    optimizer = optimizers(model) if optimizers else sgd(model.parameters())
    return Trainer(model, optimizer, LOSS, callbacks=callbacks, device="cpu", **more)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


class Spoil(Callback):
    """Makes a gradient infinite, for the batches of these numbers of the whole fit."""

    def __init__(self, *numbers, parameter=0):
        self.numbers, self.parameter = numbers, parameter

    def after_backward(self, run):
        if run.clock.batches in self.numbers:
            list(run.module.parameters())[self.parameter].grad.view(-1)[0] = math.inf


def by_hand(dtype, optimizers=lambda model: [sgd(model.parameters())], epochs=2, spoil=(), clip=None):
    model = tiny_classifier()
    made, scaler = optimizers(model), torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    for index, (inputs, targets) in enumerate(list(tiny_loader()) * epochs):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            loss = LOSS(model(inputs), targets)
        scaler.scale(loss).backward()
        if index in spoil:
            model[0].weight.grad.view(-1)[0] = math.inf
        for optimizer in made:
            scaler.unscale_(optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        for optimizer in made:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in made:
            optimizer.zero_grad()
    return model, scaler


@pytest.mark.parametrize("precision", DTYPES)
def test_forward_and_loss_compute_in_it_in_all_stages_and_weights_do_not(precision):
    seen = {}

    class Look(Callback):
        order = 10_000

        def after_forward(self, run):
            seen[run.stage, "output"] = run.output.dtype

        def around_loss(self, run):
            seen[run.stage, "loss"] = (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    trainer = made(Precision(precision), Look())
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    trainer.test(tiny_loader(8))
    assert trainer.predict(tiny_loader(8)).dtype is DTYPES[precision]
    stages = {(stage, what) for stage in ("train", "val", "test") for what in ("output", "loss")} | {("pred", "output")}
    assert seen == dict.fromkeys(stages, DTYPES[precision])
    assert all(parameter.dtype is torch.float32 for parameter in trainer.model.parameters())
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_is_on_in_forward_and_loss_only():
    on = {}
    recorder = Recorder(
        ["before_forward", "after_forward", "after_loss", "before_step", "after_step", "after_train_iter"]
    )
    recorder._player = lambda name: lambda run: on.__setitem__(name, torch.is_autocast_enabled("cpu"))
    made(Precision("bf16"), recorder).fit(tiny_loader(8), epochs=1)
    assert len(on) == 6
    assert not any(on.values())


def test_fp32_turns_an_outer_autocast_off_and_leaves_it_on_afterwards():
    dtypes = []
    trainer, plain = made(Precision("fp32")), made()
    trainer.on("after_forward")(lambda run: dtypes.append(run.output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trainer.fit(tiny_loader(), epochs=1)
        assert torch.is_autocast_enabled("cpu")
    plain.fit(tiny_loader(), epochs=1)
    assert set(dtypes) == {torch.float32}
    assert same(trainer.model, plain.model)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_bit_equal_to_a_loop_of_ones_own(precision):
    trainer = made(Precision(precision))
    trainer.fit(tiny_loader(), epochs=2)
    assert same(trainer.model, by_hand(DTYPES[precision])[0])
    assert not same(trainer.model, by_hand(torch.float32)[0])


def two_optimizers(model):
    return [sgd(model[0].parameters()), sgd(model[2].parameters())]


def test_two_optimizers_and_a_clip_are_bit_equal_to_a_loop_of_ones_own():
    precision = Precision("fp16")
    trainer = made(precision, GradientClip(norm=0.5), optimizers=two_optimizers)
    trainer.fit(tiny_loader(), epochs=2)
    model, scaler = by_hand(torch.float16, two_optimizers, clip=0.5)
    assert precision.state_dict() == {"scaler": scaler.state_dict()}
    assert same(trainer.model, model)


def test_all_optimizers_step_or_none():
    trainer = made(Precision("fp16"), Spoil(1), optimizers=two_optimizers)
    weights = []
    trainer.on("after_train_iter")(lambda run: weights.append([p.detach().clone() for p in run.module.parameters()]))
    trainer.fit(tiny_loader(), epochs=1)
    assert trainer.clock.steps == 2
    assert all(torch.equal(one, other) for one, other in zip(weights[0], weights[1], strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(weights[1], weights[2], strict=True))


def test_a_withheld_step_counts_as_skipped():
    skipped, weights = [], []
    recorder = Recorder(["before_step", "after_step", "after_zero_grad"])
    precision = Precision("fp16")
    model = tiny_classifier()
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    callbacks = (precision, MainCallback(lr_every="iter"), Spoil(1), recorder)
    trainer = made(*callbacks, model=model, optimizers=lambda model: optimizer, scheduler=schedule)

    def look(run):
        skipped.append(set(run.skipped))
        weights.append(run.module[0].weight.detach().clone())

    trainer.on("after_train_iter")(look)
    trainer.fit(tiny_loader(), epochs=1)
    assert skipped == [set(), {"step"}, set()]
    assert recorder.trace == [
        *["before_step", "after_step", "after_zero_grad"],
        "after_zero_grad",
        *["before_step", "after_step", "after_zero_grad"],
    ]
    assert trainer.clock.steps == 2
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**2)
    assert precision.state_dict()["scaler"]["scale"] == 2.0**15


def test_an_average_does_not_move_with_a_withheld_step():
    ema = EMA(0.5)
    trainer = made(Precision("fp16"), Spoil(0, 1, 2), ema)
    trainer.fit(tiny_loader(), epochs=1)
    start = tiny_classifier().state_dict()
    assert all(torch.equal(ema.average[name], start[name]) for name in start)


@pytest.mark.parametrize("fused", [torch.optim.Adam, torch.optim.AdamW])
def test_a_fused_optimizer_that_withholds_its_step_itself_counts_as_skipped_too(fused):
    recorder = Recorder(["after_step"])
    trainer = made(
        Precision("fp16"), Spoil(1), recorder, optimizers=lambda model: fused(model.parameters(), 0.01, fused=True)
    )
    trainer.fit(tiny_loader(), epochs=1)
    assert (trainer.clock.steps, len(recorder.trace)) == (2, 2)


def test_skipping_a_step_and_a_backward_keeps_the_scaler_in_order():
    class Skip(Callback):
        requests = {1: "skip_step", 2: "skip_backward", 4: "skip_step"}

        def before_backward(self, run):
            if run.clock.batches in self.requests:
                getattr(run, self.requests[run.clock.batches])()

    precision = Precision("fp16")
    trainer = made(precision, Skip(), Spoil(3, 4))
    trainer.fit(tiny_loader(), epochs=3)
    assert trainer.clock.steps == 9 - 3 - 1
    assert precision.state_dict()["scaler"]["scale"] == 2.0**14  # an infinite gradient is seen also if it is dropped


def test_gradients_are_seen_unscaled_and_accumulated_before_the_step():
    norms = []
    look = Recorder(["before_step"])
    look._player = lambda name: lambda run: norms.append(run.module[0].weight.grad.norm().item())
    look.order = 10_000
    made(Precision("fp16"), Accumulate(3), look).fit(tiny_loader(), epochs=1)
    model = tiny_classifier()
    inputs, targets = (torch.cat(parts) for parts in zip(*tiny_loader(), strict=True))
    LOSS(model(inputs), targets).backward()
    assert norms == [pytest.approx(model[0].weight.grad.norm().item(), rel=1e-2)]


def test_an_infinite_gradient_drops_the_whole_window():
    trainer = made(Precision("fp16"), Accumulate(3), Spoil(1))
    trainer.fit(list(tiny_loader(48, 8)), epochs=1)
    rest = made(Precision("fp16", init_scale=2.0**15), Accumulate(3))
    rest.fit(list(tiny_loader(48, 8))[3:], epochs=1)
    assert trainer.clock.steps == 1
    assert same(trainer.model, rest.model)


def test_added_to_a_running_fit_it_brings_its_scaler():
    trainer, scaled = made(), []
    trainer.on("after_train_iter")(
        lambda run: trainer.add(Precision("fp16")) if run.clock.batches == 1 and run.scaler is None else None
    )
    trainer.on("before_step")(lambda run: scaled.append(run.scaler is not None))
    trainer.fit(tiny_loader(), epochs=1)
    assert scaled == [False, True, True]


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match="one of bf16, fp16, fp32, not 'half'"):
        Precision("half")
    for bad in (0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="init_scale"):
            Precision("fp16", init_scale=bad)
    for bad in (0, 1.5):
        with pytest.raises(ValueError, match="growth_interval"):
            Precision("fp16", growth_interval=bad)
    with pytest.raises(CallbackError, match="both own 'precision'"):
        made(Precision("bf16"), Precision("fp32"))
    lbfgs = made(Precision("fp16"), optimizers=lambda model: torch.optim.LBFGS(model.parameters()))
    with pytest.raises(CallbackError, match="LBFGS"):
        lbfgs.fit(tiny_loader(), epochs=1)


def test_validation_alone_needs_no_scaler():
    precision = Precision("fp16")
    assert made(precision).validate(tiny_loader())["val/loss"] > 0
    assert precision.state_dict() == {}


@pytest.mark.parametrize("precision", DTYPES)
def test_it_says_what_it_does(precision):
    assert precision in Precision(precision).explain()
    assert Precision(precision).capturable is (precision != "fp16")
    check_callback(Precision(precision))
