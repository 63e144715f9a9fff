"""Precision with fp16: the state of the scaler over fits, fresh objects and failures."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.training.precision import Precision
from cadenza.testing import tiny_classifier, tiny_loader


def made(*callbacks):
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


class Spoil(Callback):
    """Makes a gradient infinite, for the batches of these numbers of the whole fit."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def after_backward(self, run):
        if run.clock.batches in self.numbers:
            run.module[0].weight.grad[0, 0] = math.inf


def test_the_state_of_the_scaler_continues_in_fresh_objects():
    def save(trainer, precision):
        return copy.deepcopy(
            [precision.state_dict(), trainer.model.state_dict(), trainer._training.optimizers[0].state_dict()]
        )

    whole = Precision("fp16", growth_interval=4)
    trainer = made(whole, Spoil(1, 3))
    trainer.fit(tiny_loader(), epochs=4)
    first = Precision("fp16", growth_interval=4)
    half = made(first, Spoil(1, 3))
    half.fit(tiny_loader(), epochs=2)
    states = save(half, first)

    second = Precision("fp16", growth_interval=4)
    second.load_state_dict(states[0])
    assert second.state_dict() == states[0]
    rest = made(second)
    rest.model.load_state_dict(states[1])
    rest._training.optimizers[0].load_state_dict(states[2])
    rest.fit(tiny_loader(), epochs=2)
    assert same(rest.model, trainer.model)
    assert second.state_dict() == whole.state_dict()
    half.fit(tiny_loader(), epochs=2)  # and a second fit of the same trainer goes on as well
    assert same(half.model, trainer.model)
    first.load_state_dict(states[0])
    assert first.state_dict() == states[0]


def test_a_fit_after_an_exception_between_unscaling_and_step():
    class Oops(Callback):
        fails = True

        def before_step(self, run):
            if self.fails:
                raise ArithmeticError

    oops = Oops()
    trainer, plain = made(Precision("fp16"), oops), made(Precision("fp16"))
    with pytest.raises(ArithmeticError):
        trainer.fit(tiny_loader(), epochs=1)
    oops.fails = False
    for one in (trainer, plain):
        one.fit(tiny_loader(), epochs=1)
    assert same(trainer.model, plain.model)
