"""Accumulate: what counts as a step, what is refused, and its open window in a checkpoint."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cadenza import Callback, CallbackError, MainCallback, Trainer
from cadenza.callbacks import Checkpoint
from cadenza.callbacks.training.accumulate import Accumulate, Window
from cadenza.testing import Recorder, tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()


def made(*callbacks, optimizer=None, scheduler=None, model=None):
    model = tiny_classifier() if model is None else model
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = scheduler(optimizer) if scheduler else None
    return Trainer(model, optimizer, LOSS, scheduler=schedule, callbacks=callbacks, device="cpu")


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def ragged():
    return [batch for size in (7, 3, 5, 2, 4) for batch in [next(iter(tiny_loader(size, size, seed=size)))]]


def test_only_the_last_batch_of_a_window_is_a_step():
    recorder = Recorder(["after_backward", "before_step", "after_step", "after_zero_grad"])
    trainer = made(Accumulate(2), recorder)
    trainer.fit(ragged(), epochs=1)
    step = ["before_step", "after_step", "after_zero_grad"]
    assert recorder.trace == [*["after_backward"] * 2, *step, *["after_backward"] * 2, *step, "after_backward", *step]
    assert (trainer.clock.batches, trainer.clock.steps, trainer.clock.samples) == (5, 3, 21)


def test_a_schedule_per_iteration_sees_real_steps_only():
    trainer = made(
        Accumulate(2), MainCallback(lr_every="iter"), scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5)
    )
    optimizer = trainer._training.optimizers[0]
    trainer.fit(ragged(), epochs=1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.5**3)


def test_the_loss_that_is_shown_and_averaged_is_the_plain_one():
    shown, batches, model = [], ragged()[:3], tiny_classifier()
    trainer = made(Accumulate(3))
    trainer.on("after_backward")(lambda run: shown.append(run.loss.item()))
    history = trainer.fit(batches, epochs=1)
    losses = [LOSS(model(inputs), targets).item() for inputs, targets in batches]
    assert shown == losses
    samples = [len(targets) for _, targets in batches]
    mean = sum(loss * count for loss, count in zip(losses, samples, strict=True)) / sum(samples)
    assert history["train/loss"] == [pytest.approx(mean)]


def test_steps_end_a_fit_and_a_stop_leaves_the_window_behind():
    trainer = made(Accumulate(2))
    trainer.fit(ragged(), steps=4)
    assert (trainer.clock.steps, trainer.clock.batches) == (4, 7)

    class Stop(Callback):
        def after_train_iter(self, run):
            if run.clock.batches == 3:
                run.stop("enough")

    accumulate = Accumulate(2)
    trainer = made(accumulate, Stop())
    trainer.fit(ragged(), epochs=1)
    assert trainer.clock.steps == 1
    assert accumulate.window.batches == 1
    continued = made(Accumulate(2), model=copy.deepcopy(trainer.model))
    momentum = copy.deepcopy(trainer._training.optimizers[0].state_dict())
    continued._training.optimizers[0].load_state_dict(momentum)
    for one in (trainer, continued):
        one.fit(ragged(), epochs=1)  # the gradients of the window that was left are not in it
    assert same(trainer.model, continued.model)


def test_an_error_leaves_no_window_to_the_next_fit():
    class Oops(Callback):
        fails = True

        def before_forward(self, run):
            if self.fails and run.batch_idx == 1:
                raise ArithmeticError

    oops = Oops()
    trainer, plain = made(Accumulate(3), oops), made(Accumulate(3))
    with pytest.raises(ArithmeticError):
        trainer.fit(ragged(), epochs=1)
    oops.fails = False
    for one in (trainer, plain):
        one.fit(ragged(), epochs=1)
    assert same(trainer.model, plain.model)


# The open window in a checkpoint ------------------------------------------------------------------------------------


class StopAt(Callback):
    def __init__(self, batch):
        self.batch = batch

    def after_train_iter(self, run):
        if run.batch_idx == self.batch:
            run.stop("saved here")


def on_the_device(run):
    return run.targets.new_tensor(len(run.targets))


def test_a_closed_window_has_no_state():
    accumulate = Accumulate(2)
    assert accumulate.state_dict() == {}
    made(accumulate).fit(ragged(), epochs=1)
    assert accumulate.state_dict() == {}
    accumulate.load_state_dict({"batches": 1, "total": 3, "reference": 3, "gradients": {}})
    accumulate.load_state_dict({})
    assert accumulate.window.batches == 0


# A window over epochs -------------------------------------------------------------------------------------------------


def test_a_carried_window_is_that_of_one_long_epoch():
    recorder = Recorder(["before_step", "after_train_epoch"])
    carried, whole = made(Accumulate(3, carry=True), recorder), made(Accumulate(3))
    carried.fit(ragged(), epochs=3)
    whole.fit(ragged() * 3, epochs=1)
    step, end = "before_step", "after_train_epoch"
    assert recorder.trace == [step, end, step, step, end, step, step, end]
    assert same(carried.model, whole.model)


def test_a_run_drops_the_window_that_it_ends_in():
    twice, once = made(Accumulate(2, carry=True)), made(Accumulate(2, carry=True))
    twice.fit(ragged(), epochs=1)
    once.fit(ragged()[:4], epochs=1)
    assert same(twice.model, once.model)
    for one in (twice, once):
        one.fit(ragged(), epochs=2)
    assert same(twice.model, once.model)


class SaveAndBreak(Callback):
    def __init__(self, batches):
        self.batches = batches

    def after_train_iter(self, run):
        if run.clock.batches == self.batches:
            run.save()

    def before_train_iter(self, run):
        if run.clock.batches == self.batches:
            raise ArithmeticError


@pytest.mark.parametrize("batches", [1, 4, 6, 7, 11])
def test_a_resume_goes_on_in_a_carried_window(tmp_path, batches):
    whole = made(Accumulate(4, carry=True))
    whole.fit(ragged(), epochs=3)
    with pytest.raises(ArithmeticError):
        made(Accumulate(4, carry=True), SaveAndBreak(batches), Checkpoint(to=tmp_path)).fit(ragged(), epochs=3)
    continued = made(Accumulate(4, carry=True), Checkpoint(to=tmp_path))
    continued.fit(ragged(), epochs=3, resume="auto")
    assert same(continued.model, whole.model)
    assert continued.clock.steps == whole.clock.steps == 3


def test_a_resume_between_epochs_goes_on_in_a_carried_window(tmp_path):
    whole = made(Accumulate(4, carry=True))
    whole.fit(ragged(), epochs=3)
    made(Accumulate(4, carry=True), Checkpoint(to=tmp_path)).fit(ragged(), epochs=1)
    continued = made(Accumulate(4, carry=True), Checkpoint(to=tmp_path))
    continued.fit(ragged(), epochs=3, resume="auto")
    assert same(continued.model, whole.model)


def test_a_window_is_carried_or_dropped():
    with pytest.raises(ValueError, match="give one of them"):
        Accumulate(2, carry=True, drop_last=True)
    assert "carried into the next epoch" in Accumulate(2, carry=True).explain()


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "2", None])
def test_a_bad_number_of_batches_is_refused(n):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        Accumulate(n)


def test_a_bad_weight_is_refused():
    with pytest.raises(ValueError, match='"samples", "tokens" or a function'):
        Accumulate(2, "loss")
    for bad in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="at least 0"):
            made(Accumulate(2, lambda run, bad=bad: bad)).fit(ragged(), epochs=1)
    with pytest.raises(ValueError, match="none are counted in this batch"):
        made(Accumulate(2, "tokens")).fit(ragged(), epochs=1)


def test_what_cannot_work_together_is_refused():
    with pytest.raises(CallbackError, match="both own 'accumulation'"):
        made(Accumulate(2), Accumulate(3))
    model = tiny_classifier()
    with pytest.raises((CallbackError, RuntimeError), match=r"LBFGS"):
        made(Accumulate(2), model=model, optimizer=torch.optim.LBFGS(model.parameters())).fit(ragged(), epochs=1)

    class Own(MainCallback):
        def on_iter_backward(self, run):
            run.loss.backward()
            run.optimizer.step()

    with pytest.raises(RuntimeError, match="too late"):
        made(Accumulate(2), Own()).fit(ragged(), epochs=1)

    class Again(Callback):
        def before_step(self, run):
            run.recompute()

    with pytest.raises(RuntimeError, match=r"recompute"):
        made(Accumulate(2), Again()).fit(ragged(), epochs=1)


def test_a_batch_that_is_played_again_is_no_further_batch():
    class Twice(MainCallback):
        def on_iter_step(self, run):
            run.recompute()
            super().on_iter_step(run)

    with_it, without = made(Twice(), Accumulate(1)), made(Twice())
    for trainer in (with_it, without):
        trainer.fit(ragged(), epochs=2)
    assert same(with_it.model, without.model)


def test_nothing_is_read_from_the_device(monkeypatch):
    def read(*args):
        raise AssertionError("a tensor was read on the host")

    batches, trainer = ragged(), made(Accumulate(2))
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "cpu", "__bool__", "__float__"):
            patch.setattr(torch.Tensor, name, read)
        trainer.fit(batches, epochs=1)
    assert trainer.clock.steps == 3


def test_a_window_without_any_weight_becomes_zero_not_nan():
    weight, window = torch.ones(2, requires_grad=True), Window()
    none = torch.zeros((), dtype=torch.float64)
    (weight.sum() * window.weigh(none)).backward()
    window.add(none)
    window.settle([weight])
    assert weight.grad.tolist() == [0.0, 0.0]
    Window().settle([weight])


def test_it_says_what_it_does():
    assert Accumulate(4, "tokens", drop_last=True).explain() == (
        "4 batches a step, weighted by tokens; a ragged last window is dropped"
    )


def test_a_validation_that_the_last_step_of_an_epoch_makes_due_is_not_late():
    """Five batches in windows of two are three steps an epoch, the third of which is made as the epoch ends."""
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[Accumulate(2)], device="cpu")
    history = trainer.fit(tiny_loader(40), tiny_loader(8), epochs=2, validate_every="3 steps")
    rows = [(row.at["epoch"], row.at["step"]) for row in history.rows if "val/loss" in row]
    assert rows == [(0, 3), (1, 6)]


def test_windows_that_no_epoch_can_fill_are_told():
    trainer = made(Accumulate(4, drop_last=True))
    with pytest.warns(
        UserWarning, match="makes no step: one takes 4 batches, an epoch has 3, and drop_last is"
    ) as told:
        trainer.fit(tiny_loader(), epochs=2)
    assert len(told) == 1
    assert trainer.clock.steps == 0
    made(Accumulate(3, drop_last=True)).fit(tiny_loader(), epochs=1)
