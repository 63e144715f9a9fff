"""WeightAverage: when the model gets the mean, and what becomes of the statistics of BatchNorm."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.training.weight_average import WeightAverage
from cadenza.testing import tiny_classifier, tiny_loader

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


def assert_mean(model, states):
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            mean = torch.stack([state[name].double() for state in states]).mean(0)
            torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


# When the model gets it ---------------------------------------------------------------------------------------------


def test_not_without_apply_but_on_request():
    average, moments = WeightAverage(apply=False), Moments()
    trainer = made(average, moments)
    trainer.fit(tiny_loader(), epochs=3)
    assert equal(trainer.model.state_dict(), moments.epochs[-1])
    average.copy_to(trainer.model)
    assert_mean(trainer.model, moments.epochs)


def test_after_a_stop_but_not_after_an_error_and_the_cut_epoch_does_not_count():
    class Act(Callback):
        def __init__(self, act):
            self.act = act

        def before_forward(self, run):
            if run.clock.batches == 7:
                self.act(run)

    def fail(run):
        raise ArithmeticError

    moments, average = Moments(), WeightAverage()
    trainer = made(average, moments, Act(lambda run: run.stop("enough")))
    trainer.fit(tiny_loader(), epochs=5)
    assert average.count == 2
    assert_mean(trainer.model, moments.epochs[:2])

    moments = Moments()
    trainer = made(WeightAverage(), moments, Act(fail))
    with pytest.raises(ArithmeticError):
        trainer.fit(tiny_loader(), epochs=5)
    assert equal(trainer.model.state_dict(), moments.steps[-1])


def test_validation_test_and_prediction_do_not_apply_it():
    average, moments = WeightAverage(apply=True), Moments()
    trainer = made(average, moments)
    trainer.fit(tiny_loader(), epochs=2)
    with torch.no_grad():
        trainer.model[0].weight.zero_()
    trainer.validate(tiny_loader())
    trainer.predict(tiny_loader())
    assert trainer.model[0].weight.eq(0).all()


def test_nothing_to_average_is_said():
    with pytest.warns(UserWarning, match="has nothing to average: every 1 epoch after 9 epochs") as told:
        made(WeightAverage(start="9 epochs")).fit(tiny_loader(), epochs=1)
    assert told[0].filename == __file__  # the line that called fit, not one of the library
    with pytest.raises(RuntimeError, match="nothing to average yet"):
        WeightAverage().copy_to(tiny_classifier())


# BatchNorm ----------------------------------------------------------------------------------------------------------


def test_statistics_are_recomputed_with_the_mean_of_the_weights():
    data, moments, model = list(tiny_loader()), Moments(), with_norm()
    made(WeightAverage(start="1 epoch"), moments, model=model).fit(data, epochs=3)
    for name, parameter in model.named_parameters():
        mean = torch.stack([state[name] for state in moments.epochs[1:]]).mean(0)
        torch.testing.assert_close(parameter.detach(), mean)
    inputs = torch.cat([inputs for inputs, _ in data])
    torch.testing.assert_close(model[0].running_mean, inputs.mean(0))
    torch.testing.assert_close(model[0].running_var, inputs.var(0))
    assert model[0].num_batches_tracked.item() == 9
    assert all(part.training for part in model.modules())


def test_over_so_many_batches_of_another_loader():
    other, model = list(tiny_loader(seed=4)), with_norm()
    made(WeightAverage(batches=2, loader=other), model=model).fit(tiny_loader(), epochs=1)
    torch.testing.assert_close(model[0].running_mean, torch.cat([other[0][0], other[1][0]]).mean(0))


@pytest.mark.parametrize("arguments", [{}, {"best": 2, "monitor": "val/loss"}])
def test_statistics_are_averaged_if_asked_and_counters_are_not(arguments):
    average, moments, model = WeightAverage(batchnorm="average", **arguments), Moments(), with_norm()
    made(average, moments, model=model).fit(tiny_loader(), tiny_loader(8), epochs=2)
    assert_mean(model, moments.epochs)
    assert model[0].num_batches_tracked.dtype is torch.int64
    assert model[0].num_batches_tracked.item() in (3, 6)


def test_a_loader_that_cannot_be_read_again_is_refused_before_anything_is_trained():
    trainer = made(WeightAverage(), model=with_norm())
    with pytest.raises(ValueError, match="can be read only once"):
        trainer.fit(iter(list(tiny_loader())), epochs=1)
    assert trainer.clock.batches == 0
    made(WeightAverage(batchnorm="average"), model=with_norm()).fit(iter(list(tiny_loader())), epochs=1)
    made(WeightAverage()).fit(iter(list(tiny_loader())), epochs=1)
