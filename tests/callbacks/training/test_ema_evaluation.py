"""EMA: evaluation with the average, and weights that always come back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.training.ema import EMA
from cadenza.testing import tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()


def with_norm():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def made(*callbacks, model=None):
    model = tiny_classifier() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return Trainer(model, optimizer, LOSS, callbacks=callbacks, device="cpu")


class Last(Callback):
    """The weights after the last step."""

    def after_step(self, run):
        self.weights = copy.deepcopy(run.module.state_dict())


class Inside(Callback):
    """What the model has at a few points."""

    def __init__(self):
        self.seen = {}

    def before_val_epoch(self, run):
        self.seen["before"] = copy.deepcopy(run.module.state_dict())

    def before_forward(self, run):
        self.seen[run.stage] = copy.deepcopy(run.module.state_dict())

    def after_val_epoch(self, run):
        self.seen["after"] = copy.deepcopy(run.module.state_dict())


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_validation_test_and_prediction_see_the_average_and_training_does_not():
    ema, inside, model = EMA(0.9), Inside(), with_norm()
    trainer = made(ema, inside, model=model)
    trainer.fit(tiny_loader(), tiny_loader(), epochs=2)
    seen = dict(inside.seen)
    assert equal(seen["val"], ema.average)
    assert equal(seen["before"], seen["after"])
    assert equal(seen["after"], model.state_dict())
    assert not equal(seen["val"], seen["after"])
    trainer.test(tiny_loader())
    trainer.predict(tiny_loader())
    assert equal(inside.seen["test"], ema.average)
    assert equal(inside.seen["pred"], ema.average)
    assert equal(model.state_dict(), seen["after"])


def test_the_loss_of_validation_is_that_of_the_average():
    ema = EMA(0.9)
    trainer = made(ema)
    history = trainer.fit(tiny_loader(), tiny_loader(24, 24), epochs=1)
    other = tiny_classifier(seed=5)
    ema.copy_to(other)
    inputs, targets = next(iter(tiny_loader(24, 24)))
    assert history["val/loss"] == [pytest.approx(LOSS(other(inputs), targets).item())]


def test_training_is_bit_equal_with_and_without_it():
    with_it, without = made(EMA(0.9), model=with_norm()), made(model=with_norm())
    for trainer in (with_it, without):
        trainer.fit(tiny_loader(), tiny_loader(), epochs=3, validate_every="2 steps")
    assert equal(with_it.model.state_dict(), without.model.state_dict())


def test_evaluate_false_leaves_validation_alone():
    ema, inside = EMA(0.9, evaluate=False), Inside()
    made(ema, inside).fit(tiny_loader(), tiny_loader(), epochs=1)
    assert equal(inside.seen["val"], inside.seen["before"])
    assert not equal(inside.seen["val"], ema.average)


@pytest.mark.parametrize("how", ["error", "stop", "end_epoch", "skip_batch"])
def test_weights_come_back_however_validation_ends(how):
    class Act(Callback):
        def before_forward(self, run):
            if run.stage == "val" and how == "error":
                raise ArithmeticError
            if run.stage == "val":
                getattr(run, how)()

    ema, last = EMA(0.9), Last()
    trainer = made(ema, last, Act())
    try:
        trainer.fit(tiny_loader(), tiny_loader(), epochs=1)
    except ArithmeticError:
        assert how == "error"
    assert equal(trainer.model.state_dict(), last.weights)


def test_a_backward_that_waits_over_a_validation_is_not_disturbed():
    trainer, plain = made(EMA(0.9)), made()
    for one in (trainer, plain):
        with one.run(epochs=1) as run:
            for _ in run.epochs():
                for _ in run.train(tiny_loader()):
                    run.forward()
                    for _ in run.validate(tiny_loader()):
                        run.eval_step()
                    run.backward()
                    run.step()
    assert equal(trainer.model.state_dict(), plain.model.state_dict())


def test_swap_gives_back_after_an_exception_and_needs_an_average():
    ema, model = EMA(0.9), tiny_classifier()
    with pytest.raises(RuntimeError, match="no average yet"), ema.swap(model):
        pass
    made(ema, model=model).fit(tiny_loader(), epochs=1)
    own = copy.deepcopy(model.state_dict())

    def swap_and_fail():
        with ema.swap(model):
            assert equal(model.state_dict(), ema.average)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        swap_and_fail()
    assert equal(model.state_dict(), own)


def test_keep_gives_the_model_the_average_when_the_fit_ends_and_not_after_an_error():
    ema = EMA(0.9, keep=True)
    trainer = made(ema)
    trainer.fit(tiny_loader(), epochs=1)
    assert equal(trainer.model.state_dict(), ema.average)
    last = Last()

    class Oops(Callback):
        def after_epoch(self, run):
            raise ArithmeticError

    trainer = made(EMA(0.9, keep=True), last, Oops())
    with pytest.raises(ArithmeticError):
        trainer.fit(tiny_loader(), epochs=1)
    assert equal(trainer.model.state_dict(), last.weights)
