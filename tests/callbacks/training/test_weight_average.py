"""WeightAverage: which moments are averaged, the mean by hand, its state and what is refused."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.callbacks.training.weight_average import WeightAverage
from cadenza.testing import Recorder, check_callback, tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()


def with_norm():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


def made(*callbacks, model=None):
    model = tiny_classifier() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return Trainer(model, optimizer, LOSS, callbacks=callbacks, device="cpu")


class Moments(Callback):
    """Copies the weights after every step and at the end of every epoch."""

    def __init__(self):
        self.steps, self.epochs = [], []

    def after_step(self, run):
        self.steps.append(copy.deepcopy(run.module.state_dict()))

    def after_epoch(self, run):
        self.epochs.append(copy.deepcopy(run.module.state_dict()))


class Score(Callback):
    """Logs values that are chosen by hand, one an epoch; None logs nothing."""

    def __init__(self, name, *values):
        self.metric, self.values = name, values

    def after_val_epoch(self, run):
        value = self.values[run.epoch]
        if value is not None:
            run.log(self.metric, value)


def assert_mean(model, states):
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            mean = torch.stack([state[name].double() for state in states]).mean(0)
            torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


# Which moments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"start": "2 epochs"}, [2, 3, 4]),
        ({"start": "6 steps"}, [2, 3, 4]),
        ({"every": "2 epochs"}, [1, 3]),
        ({"start": "2 epochs", "every": "2 epochs"}, [3]),
    ],
)
def test_epochs_from_a_start_on(arguments, chosen):
    average, moments = WeightAverage(**arguments), Moments()
    trainer = made(average, moments)
    trainer.fit(tiny_loader(), epochs=5)
    assert average.count == len(chosen)
    assert_mean(trainer.model, [moments.epochs[index] for index in chosen])
    assert not equal(trainer.model.state_dict(), moments.epochs[-1]) or chosen == [4]


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ({"every": "1 step"}, range(1, 10)),
        ({"every": "2 steps"}, [2, 4, 6, 8]),
        ({"every": "2 steps", "start": "4 steps"}, [6, 8]),
        ({"every": "1 step", "start": "2 epochs"}, [7, 8, 9]),
    ],
)
def test_steps_from_a_start_on(arguments, chosen):
    average, moments = WeightAverage(**arguments), Moments()
    trainer = made(average, moments)
    trainer.fit(tiny_loader(), epochs=3)
    assert average.count == len(chosen)
    assert_mean(trainer.model, [moments.steps[number - 1] for number in chosen])


def test_under_accumulation_steps_are_real_steps():
    average, moments = WeightAverage(every="2 steps"), Moments()
    trainer = made(Accumulate(2), average, moments)
    trainer.fit(tiny_loader(48, 8), epochs=2)
    assert trainer.clock.steps == 6
    assert_mean(trainer.model, [moments.steps[number - 1] for number in (2, 4, 6)])


@pytest.mark.parametrize(
    ("metric", "mode", "values", "chosen"),
    [
        ("val/score", None, (1.0, 5.0, 3.0, 4.0, 2.0), [1, 3]),
        ("val/my_loss", None, (1.0, 5.0, 3.0, 4.0, 2.0), [0, 4]),
        ("val/score", "min", (1.0, 5.0, 3.0, 4.0, 2.0), [0, 4]),
        ("val/score", None, (3.0, 3.0, 3.0, 3.0, 3.0), [0, 1]),
        ("val/score", None, (math.nan, 1.0, math.nan, 2.0, 0.5), [1, 3]),
        ("score", None, (1.0, None, 9.0, None, None), [0, 2]),
    ],
    ids=["max", "min by name", "min", "equal is not better", "NaN", "not measured"],
)
def test_the_best_epochs(metric, mode, values, chosen):
    average, moments = WeightAverage(best=2, monitor=metric, mode=mode), Moments()
    trainer = made(Score(metric, *values), average, moments)
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=5)
    assert sorted(member["epoch"] for member in average._members) == chosen
    assert_mean(trainer.model, [moments.epochs[index] for index in chosen])


def test_an_epoch_without_validation_does_not_take_part_with_an_old_value():
    average = WeightAverage(best=3, monitor="val/loss")
    made(average).fit(tiny_loader(), tiny_loader(8), epochs=4, validate_every="2 epochs")
    assert sorted(member["epoch"] for member in average._members) == [1, 3]


@pytest.mark.parametrize("monitor", ["val/los", "val_loss"])
def test_an_unknown_metric_is_an_error_at_the_first_check(monitor):
    trainer = made(WeightAverage(best=2, monitor=monitor), Recorder(points=["after_best"]))  # which may log anything
    with pytest.raises(KeyError, match=r"no metric .*; did you mean 'val/loss'\? Known: train/loss, val/loss"):
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=2)
    assert trainer.clock.batches == 3


# State --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [{"every": "2 steps"}, {"start": "1 epoch"}, {"best": 2, "monitor": "val/loss"}], ids=str
)
def test_continuing_in_fresh_objects_is_bit_equal(arguments):
    def fresh():
        average = WeightAverage(**arguments, apply=False)
        return average, made(average)

    def fit(trainer, epochs):
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=epochs)

    whole, trainer = fresh()
    fit(trainer, 4)
    first, half = fresh()
    fit(half, 2)
    states = copy.deepcopy([first.state_dict(), half.model.state_dict(), half._training.optimizers[0].state_dict()])
    second, rest = fresh()
    second.load_state_dict(states[0])
    rest.model.load_state_dict(states[1])
    rest._training.optimizers[0].load_state_dict(states[2])
    rest._training.clock.load_state_dict(half._training.clock.state_dict())
    fit(rest, 2)
    fit(half, 2)  # a second fit of the same trainer goes on, too
    models = [tiny_classifier() for _ in range(3)]
    for average, model in zip((whole, second, first), models, strict=True):
        average.copy_to(model)
    assert equal(models[0].state_dict(), models[1].state_dict())
    assert equal(models[0].state_dict(), models[2].state_dict())


def test_half_precision_weights_are_averaged_in_float32():
    model = tiny_classifier().to(torch.bfloat16)
    average = WeightAverage()
    for value in (0.0, 0.5, 0.25):
        nn.init.constant_(model[0].weight, value)
        average._add(model)
    average.copy_to(model)
    assert model[0].weight.dtype is torch.bfloat16
    assert torch.equal(model[0].weight, torch.full_like(model[0].weight, 0.25))
    assert average.state_dict()["mean"]["0.weight"].dtype is torch.float32


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"every": "10 seconds"}, "epochs or steps, not seconds"),
        ({"every": "0 epochs"}, "more than 0"),
        ({"start": "later"}, "not a duration"),
        ({"best": 2}, "given together"),
        ({"monitor": "val/loss"}, "given together"),
        ({"best": 0, "monitor": "val/loss"}, "at least 1"),
        ({"best": 2, "monitor": "val/loss", "mode": "low"}, '"min" or "max"'),
        ({"batchnorm": "keep"}, '"recompute" or "average"'),
        ({"batches": 0}, "at least 1"),
    ],
)
def test_bad_arguments_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        WeightAverage(**arguments)


def test_it_says_what_it_does():
    assert WeightAverage(start="3 epochs").explain() == "every 1 epoch after 3 epochs"
    assert WeightAverage(best=3, monitor="val/acc").explain() == (
        "the 3 epochs with the highest val/acc, inferred from its name"
    )
    assert WeightAverage(best=3, monitor="val/acc", mode="min").explain() == "the 3 epochs with the lowest val/acc"


@pytest.mark.filterwarnings("ignore:.*watches no metric:UserWarning")
def test_the_best_epochs_are_a_good_callback():
    check_callback(WeightAverage(best=2, monitor="val/loss"))
