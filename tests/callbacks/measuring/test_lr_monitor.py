"""LRMonitor: the rates that the steps were made with, by name, for every group of every optimizer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cadenza import Callback, MainCallback, Order, Trainer, When
from cadenza.callbacks.measuring.lr_monitor import LRMonitor, rates
from cadenza.callbacks.rates.schedule import Schedule
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.points import POINTS, SPAN
from cadenza.testing import check_callback, tiny_classifier, tiny_loader


class Used(Callback):
    """Writes down the rate inside each step."""

    order = Order.PREPARE

    def __init__(self):
        self.lrs = []

    def before_step(self, run):
        self.lrs.append(float(run.optimizer.param_groups[0]["lr"]))


class At(Callback):
    def __init__(self, point, act):
        self.point, self.act = point, act

    def plays(self):
        return {self.point: self.act}


def made(*callbacks, optimizer=None, scheduler=None, **sgd):
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.8, **sgd}) if optimizer is None else optimizer(model)
    scheduler = None if scheduler is None else scheduler(optimizer)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), scheduler=scheduler, callbacks=callbacks, device="cpu")


def halving(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def inside(history, name="lr"):
    return [(row["step"], row[name]) for row in history.iters if name in row]


def test_each_epoch_has_the_rate_it_was_trained_with():
    history = made(LRMonitor(), scheduler=halving).fit(tiny_loader(), tiny_loader(), epochs=3)
    assert [row["lr"] for row in history.epochs] == [0.8, 0.4, 0.2]
    assert history["momentum"] == [0.0] * 3
    assert history.iters == []


def test_every_second_epoch():
    history = made(LRMonitor("2 epochs"), scheduler=halving).fit(tiny_loader(), epochs=4)
    assert ["lr" in row for row in history.epochs] == [False, True, False, True]
    assert history["lr"] == [0.4, 0.1]


@pytest.mark.parametrize("kind", ["torch, each step", "curve, each step"])
def test_each_step_has_the_rate_it_was_made_with(kind):
    used = Used()
    if kind == "curve, each step":
        trainer = made(used, LRMonitor("1 step"), Schedule(lambda x: 1 - x / 2))
    else:
        trainer = made(used, MainCallback(lr_every="iter"), LRMonitor("1 step"), scheduler=halving)
    history = trainer.fit(tiny_loader(), epochs=2)
    assert inside(history) == list(enumerate(used.lrs, start=1))
    assert len(set(used.lrs)) == 6


def test_at_the_end_of_an_epoch_it_is_that_of_the_last_step():
    used = Used()
    trainer = made(used, MainCallback(lr_every="iter"), LRMonitor(), scheduler=halving)
    assert trainer.fit(tiny_loader(), epochs=2)["lr"] == [used.lrs[2], used.lrs[5]]


def test_windows_of_steps_under_accumulation():
    used = Used()
    trainer = made(used, Accumulate(2), MainCallback(lr_every="iter"), LRMonitor("2 steps"), scheduler=halving)
    history = trainer.fit(tiny_loader(32), epochs=2)
    assert inside(history) == [(2, used.lrs[1]), (4, used.lrs[3])]


def test_skipped_steps_are_not_counted():
    skip = At("before_step", lambda run: run.skip_step() if run.batch_idx == 0 else None)
    history = made(skip, LRMonitor("1 step")).fit(tiny_loader(), epochs=1)
    assert [step for step, _ in inside(history)] == [1, 2]


def two_groups(model):
    return torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1, "momentum": 0.5}, {"params": model[2].parameters()}], lr=0.2
    )


def test_names_of_groups():
    history = made(LRMonitor(), optimizer=two_groups).fit(tiny_loader(), epochs=1)
    assert (history["lr/0/0"], history["lr/0/1"]) == ([0.1], [0.2])
    assert (history["momentum/0/0"], history["momentum/0/1"]) == ([0.5], [0.0])
    assert "lr" not in history


def test_names_of_optimizers_and_of_named_groups():
    def both(model):
        adam = torch.optim.Adam([{"params": model[0].parameters(), "name": "body"}], lr=0.01, betas=(0.7, 0.9))
        return [adam, torch.optim.SGD(model[2].parameters(), lr=0.2, momentum=0.3)]

    history = made(LRMonitor(), optimizer=both).fit(tiny_loader(), epochs=1)
    assert (history["lr/0/body"], history["lr/1/0"]) == ([0.01], [0.2])
    assert (history["momentum/0/body"], history["momentum/1/0"]) == ([0.7], [0.3])


def test_groups_of_the_same_name_are_numbered():
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    groups = [{"params": layer.parameters(), "name": "layer", "lr": lr} for layer, lr in ((one, 0.1), (other, 0.2))]
    assert rates([torch.optim.SGD(groups)], momentum=False) == {"lr/0/0": 0.1, "lr/0/1": 0.2}


def test_no_momentum_is_logged_if_unwanted_or_if_there_is_none():
    names = made(LRMonitor(momentum=False), momentum=0.9).fit(tiny_loader(), epochs=1).names()
    assert names == ["lr", "train/loss"]
    adagrad = made(LRMonitor(), optimizer=lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1))
    assert adagrad.fit(tiny_loader(), epochs=1).names() == ["lr", "train/loss"]


def test_a_rate_that_is_a_tensor_is_logged_as_it_stood():
    class Moving(Callback):
        def after_train_iter(self, run):
            run.optimizer.param_groups[0]["lr"].mul_(0.5)

    history = made(LRMonitor("1 step"), Moving(), lr=torch.tensor(0.5)).fit(tiny_loader(), epochs=1)
    assert inside(history) == [(1, 0.5), (2, 0.25), (3, 0.125)]


def test_a_stop_an_error_and_a_further_fit():
    stop = At("after_train_iter", lambda run: run.stop() if run.batch_idx == 0 else None)
    assert made(LRMonitor(), stop).fit(tiny_loader(), epochs=2)["lr"] == [0.8]
    fail = At("after_train_iter", lambda run: 1 / 0 if run.clock.batches == 2 else None)
    trainer = made(LRMonitor("2 steps"), fail)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(tiny_loader(), epochs=1)
    trainer.remove(fail)
    history = trainer.fit(tiny_loader(40), epochs=1)
    assert [step for step, _ in inside(history)] == [4, 6]


def test_within_a_window():
    history = made(When(LRMonitor(), every="2 epochs"), scheduler=halving).fit(tiny_loader(), epochs=4)
    assert history["lr"] == [0.4, 0.1]


def test_it_plays_outside_the_step():
    actions = {span.name for span in SPAN.values() if span.action}
    assert not {POINTS[name].span for name in LRMonitor().plays()} & (actions | {"fetch"})


def test_intervals_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="more than 0 steps"):
        LRMonitor("0 steps")
    with pytest.raises(ValueError, match="not a duration"):
        LRMonitor(3)


def test_it_behaves_as_a_callback():
    check_callback(LRMonitor())
    assert LRMonitor().explain() == "lr and momentum every 1 epoch"
