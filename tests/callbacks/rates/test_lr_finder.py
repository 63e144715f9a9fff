"""The sweep against its formula, and that nothing is left of it."""

from __future__ import annotations

import copy
import math
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import cadenza
from cadenza.callback import Callback
from cadenza.callbacks.rates.lr_finder import LRFinder, Sweep, find_lr
from cadenza.callbacks.rates.schedules import CosineSchedule
from cadenza.foundation.rng import seed_everything
from cadenza.main_callback import MainCallback
from cadenza.registration.checks import CallbackError
from cadenza.testing import Recorder, tiny_data, tiny_loader

LR = 0.05


def model() -> nn.Module:
    """With buffers, and with random numbers in its forward."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def training(*callbacks: Callback, kind: type[torch.optim.Optimizer] = torch.optim.Adam, **given: Any) -> Any:
    module = model()
    optimizer = kind(module.parameters(), lr=LR, **given)
    trainer = cadenza.Trainer(module, optimizer, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")
    return trainer, optimizer


def everything(trainer: Any, optimizer: Any) -> dict[str, Any]:
    return copy.deepcopy(
        {
            "model": {**trainer.model.state_dict()},
            "optimizer": optimizer.state_dict(),
            "flags": [module.training for module in trainer.model.modules()],
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": numpy.random.get_state()[1],
        }
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_the_sweep_is_exponential_and_the_optimizer_sees_it() -> None:
    trainer, optimizer = training(LRFinder(1e-4, 1.0, steps=9, stop_factor=None))
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    trainer.fit(tiny_loader(), epochs=5)
    expected = [1e-4 * 1e4 ** (i / 8) for i in range(9)]
    assert seen == pytest.approx(expected, rel=1e-12)
    sweep = trainer.store["lr_finder"]
    assert sweep.lrs == pytest.approx(expected, rel=1e-12)
    assert len(sweep.losses) == len(sweep.smoothed) == 9
    assert optimizer.param_groups[0]["lr"] == LR


def test_the_smoothed_loss_and_the_suggestion_are_those_of_the_formula() -> None:
    trainer, _ = training(LRFinder(1e-4, 1.0, steps=12, stop_factor=None, smoothing=0.5))
    trainer.fit(tiny_loader(), steps=12)
    sweep = trainer.store["lr_finder"]
    for i in range(12):
        weights = [0.5 ** (i - j) for j in range(i + 1)]
        mean = sum(w * loss for w, loss in zip(weights, sweep.losses, strict=False)) / sum(weights)
        assert sweep.smoothed[i] == pytest.approx(mean)
    places = range(2, 10)  # a sixth of the sweep is on either side
    lowest = min(places, key=lambda i: sum(sweep.losses[i - 2 : i + 3]))
    slopes = {i: numpy.polyfit(range(5), sweep.losses[i - 2 : i + 3], 1)[0] for i in places if i <= lowest}
    assert sweep.suggestion == sweep.lrs[min(slopes, key=lambda i: slopes[i])]


def swept(noise: float, seed: int, steps: int = 100) -> Sweep:
    """Losses that fall from 2.3 to 0.3 around a rate of 0.01, fly apart above 1, and jump about as those of small
    batches do; smoothed as ``LRFinder`` does."""
    draw = random.Random(seed)
    lrs = [1e-7 * 1e8 ** (i / (steps - 1)) for i in range(steps)]
    losses, smoothed, average = [], [], 0.0
    for i, lr in enumerate(lrs):
        loss = 0.3 + 2.0 / (1 + (lr / 0.01) ** 1.5) + (lr * draw.random() * 20 if lr > 1 else 0)
        losses.append(loss * math.exp(draw.gauss(0, noise)))
        average = 0.9 * average + 0.1 * losses[-1]
        smoothed.append(average / (1 - 0.9 ** (i + 1)))
    return Sweep(tuple(lrs), tuple(losses), tuple(smoothed))


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.2, 0.3])
def test_the_suggestion_does_not_follow_the_noise(noise: float) -> None:
    """The steepest of the smoothed losses was anywhere in the sweep: it is after a jump at a rate that is too large, or
    among the first losses, which are hardly smoothed."""
    suggestions = [swept(noise, seed).suggestion or 0.0 for seed in range(50)]
    assert min(suggestions) > 0.002
    assert max(suggestions) < 0.05


def test_what_follows_the_lowest_losses_does_not_count() -> None:
    losses = (2.0, 1.9, 1.5, 1.0, 0.9, 0.9, 9.0, 90.0, 40.0, 4.0)
    lrs = tuple(10.0 ** (i - 8) for i in range(10))
    assert Sweep(lrs, losses, losses).suggestion == lrs[2]


def test_a_loss_that_falls_nowhere_has_no_suggestion() -> None:
    assert Sweep((0.1, 1.0, 10.0), (1, 2, 3), (1, 2, 3)).suggestion is None
    assert Sweep((), (), ()).suggestion is None
    assert Sweep((0.1,), (1,), (1,)).suggestion is None


@pytest.mark.filterwarnings("ignore:the model has been trained")
@pytest.mark.parametrize("way", ["function", "callback"])
@pytest.mark.parametrize("begun", [False, True])
def test_everything_is_put_back_exactly(way: str, begun: bool) -> None:
    trainer, optimizer = training(weight_decay=0.1, amsgrad=True)
    if begun:
        trainer.fit(tiny_loader(), epochs=1)
    trainer.model.eval()
    seed_everything(3)
    before, tensors = everything(trainer, optimizer), dict(trainer.model.named_parameters())
    if way == "function":
        find_lr(trainer, tiny_loader(shuffle=True), steps=10, end=1e3, stop_factor=None)
    else:
        trainer.add(LRFinder(steps=10, end=1e3, stop_factor=None))
        trainer.fit(tiny_loader(shuffle=True), steps=10)
    assert same(everything(trainer, optimizer), before)
    assert all(tensors[name] is parameter for name, parameter in trainer.model.named_parameters())


@pytest.mark.filterwarnings("ignore:the model has been trained")
@pytest.mark.parametrize("own_generator", [False, True])
def test_a_fit_after_the_function_is_bit_equal_to_one_without(own_generator: bool) -> None:
    fitted = []
    for sweeps in (False, True):
        trainer, optimizer = training()
        seed_everything(7)
        generator = torch.Generator().manual_seed(1) if own_generator else None
        loader = DataLoader(tiny_data(30), batch_size=8, shuffle=True, generator=generator)
        trainer.fit(loader, epochs=1)
        if sweeps:
            rows, clock = trainer.history.to_rows(), trainer.clock.state_dict()
            sweep = find_lr(trainer, loader, steps=11, end=100)
            assert 3 <= len(sweep.lrs) <= 11
            assert (trainer.history.to_rows(), trainer.clock.state_dict(), trainer.store) == (rows, clock, {})
        trainer.fit(loader, epochs=2)
        fitted.append((everything(trainer, optimizer), trainer.history["train/loss"]))
    assert same(fitted[0], fitted[1])


def test_a_fit_after_the_callback_is_bit_equal_to_one_without() -> None:
    fitted = []
    for sweeps in (False, True):
        trainer, optimizer = training()
        seed_everything(7)
        loader = DataLoader(tiny_data(30), batch_size=8, shuffle=True)
        if sweeps:
            finder = LRFinder(steps=10)
            trainer.add(finder)
            trainer.fit(loader, epochs=4)
            trainer.remove(finder)
        trainer.fit(loader, epochs=2)
        fitted.append((everything(trainer, optimizer), trainer.history["train/loss"][-2:]))
    assert same(fitted[0], fitted[1])


def test_it_stops_when_the_loss_runs_away() -> None:
    trainer, _ = training(kind=torch.optim.SGD)
    sweep = find_lr(trainer, tiny_loader(), start=1e-3, end=1e6, steps=60, stop_factor=2)
    assert 3 < len(sweep.lrs) < 60
    assert sweep.smoothed[-1] > 2 * min(sweep.smoothed)
    assert all(value <= 2 * min(sweep.smoothed[: i + 1]) for i, value in enumerate(sweep.smoothed[:-1]))


def test_a_fit_that_is_too_short_is_told() -> None:
    trainer, _ = training(LRFinder(1e-3, 1, steps=12))
    with pytest.warns(UserWarning, match="LRFinder made 3 of its 12 steps, up to a rate of 0.00351"):
        trainer.fit(tiny_loader(), epochs=1)
    assert len(trainer.store["lr_finder"].lrs) == 3
    trainer.fit(tiny_loader(), steps=12)  # a warning would be an error
    assert len(trainer.store["lr_finder"].lrs) == 12


def test_a_loss_that_is_not_finite_ends_it_and_is_left_out() -> None:
    class Breaking(MainCallback):
        def on_iter_loss(self, run: Any) -> None:
            super().on_iter_loss(run)
            if run.clock.steps == 4:
                run.loss = run.loss * float("nan")

    trainer, optimizer = training(Breaking())
    before = everything(trainer, optimizer)
    sweep = find_lr(trainer, tiny_loader(), steps=10)
    assert len(sweep.losses) == 4
    assert all(map(math.isfinite, sweep.losses))
    assert same(everything(trainer, optimizer)["model"], before["model"])


@pytest.mark.parametrize("way", ["function", "callback"])
def test_an_error_in_the_middle_still_puts_everything_back(way: str) -> None:
    trainer, optimizer = training(*([LRFinder(steps=9)] if way == "callback" else []))
    trainer.model.train()
    before = everything(trainer, optimizer)
    left = [1, 1, 1, 0]
    trainer.model.register_forward_hook(lambda *_: 1 / left.pop(0) and None)
    with pytest.raises(ZeroDivisionError):
        find_lr(trainer, tiny_loader(), steps=9) if way == "function" else trainer.fit(tiny_loader(), steps=9)
    assert same(everything(trainer, optimizer), before)


def test_groups_keep_their_ratio() -> None:
    module = model()
    groups = [{"params": module[0].parameters(), "lr": 0.1}, {"params": module[4].parameters(), "lr": 0.4}]
    optimizer = torch.optim.SGD(groups)
    trainer = cadenza.Trainer(module, optimizer, nn.CrossEntropyLoss(), device="cpu")
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append([group["lr"] for group in optimizer.param_groups]))
    find_lr(trainer, tiny_loader(), start=0.01, end=1.0, steps=3, stop_factor=None)
    assert [row[0] for row in seen] == pytest.approx([0.01, 0.1, 1.0])
    assert [row[1] / row[0] for row in seen] == pytest.approx([4.0] * 3)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.4]


class Hold(Callback):
    def after_backward(self, run: Any) -> None:
        if run.batches_seen % 2:
            run.hold_step()


def test_with_accumulation_a_step_has_the_mean_loss_of_its_window() -> None:
    trainer, _ = training(kind=torch.optim.SGD)
    losses: list[float] = []

    class Losses(Callback):
        def after_loss(self, run: Any) -> None:
            losses.append(run.loss.item())

    loader = tiny_loader(samples=32, batch_size=8)
    sweep = find_lr(trainer, loader, steps=4, stop_factor=None, callbacks=[Hold(), Losses()])
    assert len(losses) == 8
    assert sweep.losses == pytest.approx([(losses[i] + losses[i + 1]) / 2 for i in range(0, 8, 2)])


def test_skipped_batches_are_no_part_of_it() -> None:
    class SkipSome(Callback):
        def before_train_iter(self, run: Any) -> None:
            if run.clock.batches % 2:
                run.skip_batch()

    trainer, optimizer = training(LRFinder(0.01, 1.0, steps=4, stop_factor=None), SkipSome())
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    trainer.fit(tiny_loader(), epochs=5)
    assert seen == pytest.approx([0.01 * 100 ** (i / 3) for i in range(4)])
    assert trainer.clock.batches == 7


def test_there_is_no_validation_and_the_callbacks_of_the_trainer_do_not_notice() -> None:
    recorder = Recorder()
    trainer, _ = training(LRFinder(steps=7), recorder)
    trainer.fit(tiny_loader(), tiny_loader(), epochs=9)
    assert "before_val_epoch" not in recorder.trace
    assert recorder.trace.count("before_epoch") == 3
    quiet = Recorder()
    trainer, _ = training(quiet)
    find_lr(trainer, tiny_loader(), steps=5)
    assert quiet.trace == []


def test_the_main_callback_takes_part_as_a_copy() -> None:
    class Doubling(MainCallback):
        calls = 0

        def on_iter_loss(self, run: Any) -> None:
            super().on_iter_loss(run)
            run.loss = run.loss * 2
            self.calls += 1

    main = Doubling()
    plain, _ = training(kind=torch.optim.SGD)
    doubled, _ = training(main, kind=torch.optim.SGD)
    one = find_lr(plain, tiny_loader(), steps=3, start=1e-9, end=1e-8)
    two = find_lr(doubled, tiny_loader(), steps=3, start=1e-9, end=1e-8)
    assert two.losses == pytest.approx([2 * loss for loss in one.losses], rel=0.5)
    assert main.calls == 0


def test_a_sweep_is_said_in_a_few_words() -> None:
    sweep = Sweep((0.01, 0.1, 1.0, 10.0), (2.0, 1.8, 0.9, 0.8), (2.0, 1.9, 1.2, 1.0))
    assert repr(sweep) == "<Sweep of 4 learning rates from 0.01 to 10: suggestion 0.1>"
    assert repr(Sweep((), (), ())) == "<Sweep of 0 learning rates: no suggestion>"


def test_the_figure_is_drawn_without_a_display(tmp_path: Path) -> None:
    sweep = Sweep((0.01, 0.1, 1.0, 10.0), (2.0, 1.8, 0.9, 1.0), (2.0, 1.9, 1.2, 1.0))
    figure = sweep.plot(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["loss", "smoothed loss", "suggestion 0.1"]
    assert len(Sweep((0.1, 1.0), (1, 2), (1, 2)).plot().axes[0].lines) == 2


def test_a_last_loss_that_flies_away_does_not_hide_the_others() -> None:
    sweep = Sweep((0.01, 0.1, 1.0, 10.0), (2.0, 1.8, 0.9, 9000.0), (2.0, 1.9, 1.2, 4.0))
    low, high = sweep.plot().axes[0].get_ylim()
    assert 0 < low < 0.9
    assert 4.0 < high < 5.0
    assert Sweep((0.1,), (float("nan"),), (float("nan"),)).plot().axes[0].lines


def test_a_second_fit_sweeps_again() -> None:
    trainer, _ = training(LRFinder(steps=5))
    trainer.fit(tiny_loader(), epochs=3)
    first = trainer.store.pop("lr_finder")
    trainer.fit(tiny_loader(), epochs=3)
    assert trainer.store["lr_finder"].lrs == first.lrs
    assert trainer.store["lr_finder"].losses == first.losses


def test_it_owns_the_learning_rate() -> None:
    with pytest.raises(CallbackError, match="both own 'lr'"):
        training(LRFinder(), CosineSchedule())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"start": 0}, "numbers above 0"),
        ({"start": 1, "end": 1}, "start the lower one"),
        ({"steps": 2}, "steps must be a whole number of at least 3"),
        ({"stop_factor": 1}, "stop_factor must be a number above 1 or None"),
        ({"smoothing": 1.0}, "smoothing must be a number from 0"),
    ],
)
def test_bad_arguments_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LRFinder(**given)
    with pytest.raises(ValueError, match=says):
        find_lr(training()[0], tiny_loader(), **given)


def test_it_behaves_as_a_callback_should() -> None:
    assert LRFinder().explain() == "100 steps from 1e-07 to 10, then everything is put back"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:the model has been trained for")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_a_fit_afterwards_is_bit_equal() -> None:
    fitted = []
    for sweeps in (False, True):
        module = model()
        optimizer = torch.optim.AdamW(module.parameters(), lr=LR, fused=True)
        trainer = cadenza.Trainer(module, optimizer, nn.CrossEntropyLoss(), device="cuda")
        seed_everything(7)
        loader = tiny_loader(30, shuffle=True)
        trainer.fit(loader, epochs=1)
        if sweeps:
            find_lr(trainer, loader, steps=9)
        trainer.fit(loader, epochs=2)
        fitted.append([*module.state_dict().values(), torch.cuda.get_rng_state()])
    for one, other in zip(*fitted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("way", ["callback", "function"])
def test_a_model_that_was_trained_is_warned_of(way: str) -> None:
    trainer, _ = training()
    trainer.fit(tiny_loader(), epochs=1)
    said = "has been trained for 3 steps, so the sweep finds a rate to continue with"
    if way == "callback":
        trainer.add(LRFinder(steps=5))
    sweep = partial(trainer.fit if way == "callback" else partial(find_lr, trainer), tiny_loader(), steps=5)
    with pytest.warns(UserWarning, match=said) as told:
        sweep()
    assert len(told) == 1


def test_an_optimizer_that_was_used_elsewhere_is_warned_of_too() -> None:
    module = model()
    optimizer = torch.optim.Adam(module.parameters())
    for one in module.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()
    trainer = cadenza.Trainer(module, optimizer, nn.CrossEntropyLoss(), device="cpu")
    with pytest.warns(UserWarning, match="or its optimizer has been trained"):
        find_lr(trainer, tiny_loader(), steps=5)
