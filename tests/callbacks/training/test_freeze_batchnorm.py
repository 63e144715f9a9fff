"""FreezeBatchNorm: from when on, what stays, and flags that come back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.training.freeze_batchnorm import FreezeBatchNorm
from cadenza.testing import check_callback, tiny_loader

LOSS = nn.CrossEntropyLoss()


def model_of():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        return nn.ModuleDict({"stem": nn.BatchNorm1d(4), "body": body, "head": nn.Linear(6, 3)})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = model_of()

    def forward(self, x):
        return self.parts["head"](self.parts["body"](self.parts["stem"](x)))


def made(*callbacks, model=None, zero_grad=None):
    model = Net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.1)
    return Trainer(model, optimizer, LOSS, callbacks=callbacks, device="cpu")


class States(Callback):
    """The state of the model after each epoch; the first is the start."""

    order = 10_000

    def __init__(self):
        self.seen, self.training = [], []

    def before_run(self, run):
        self.seen.append(copy.deepcopy(run.module.state_dict()))

    def before_train_iter(self, run):
        self.training.append([part.training for part in run.module.modules() if isinstance(part, nn.BatchNorm1d)])

    def after_epoch(self, run):
        self.seen.append(copy.deepcopy(run.module.state_dict()))


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


ALL = set(Net().state_dict())
STATISTICS = {name for name in ALL if "running" in name or "tracked" in name}
AFFINE = {f"parts.{norm}.{name}" for norm in ("stem", "body.1") for name in ("weight", "bias")}


@pytest.mark.parametrize("affine", [False, True])
def test_from_an_epoch_on(affine):
    states = States()
    made(FreezeBatchNorm("1 epoch", affine=affine), states).fit(tiny_loader(), tiny_loader(8), epochs=3)
    first, second, third = (changed(a, b) for a, b in zip(states.seen, states.seen[1:], strict=False))
    assert first == ALL
    assert second == third == ALL - STATISTICS - (AFFINE if affine else set())
    assert states.training == [[True, True]] * 3 + [[False, False]] * 6


def test_bit_equal_to_a_loop_that_puts_them_into_eval_mode():
    trainer, model = made(FreezeBatchNorm()), Net()
    trainer.fit(tiny_loader(), epochs=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.1)
    for norm in (model.parts["stem"], model.parts["body"][1]):
        norm.eval()
    for _ in range(2):
        for inputs, targets in tiny_loader():
            LOSS(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not changed(trainer.model.state_dict(), model.state_dict())


def test_a_validation_in_the_middle_does_not_wake_them():
    states = States()
    made(FreezeBatchNorm(), states).fit(tiny_loader(), tiny_loader(8), epochs=2, validate_every="1 step")
    assert states.training == [[False, False]] * 6
    assert not changed(states.seen[0], states.seen[-1]) & STATISTICS


def test_only_the_layers_of_named_modules():
    states = States()
    made(FreezeBatchNorm(modules=["parts.body"]), states).fit(tiny_loader(), epochs=1)
    frozen = {name for name in STATISTICS if "body" in name}
    assert changed(*states.seen) == ALL - frozen
    with pytest.raises(ValueError, match=r"no parameter in 'parts.boddy'; did you mean 'parts.body'"):
        made(FreezeBatchNorm(modules=["parts.boddy"])).fit(tiny_loader(), epochs=1)


@pytest.mark.parametrize("how", ["end", "stop", "error"])
def test_flags_and_gradients_come_back_however_the_epoch_ends(how):
    class Act(Callback):
        def after_forward(self, run):
            if how == "error":
                raise ArithmeticError
            if how == "stop":
                run.stop("enough")

    model = Net()
    model.parts["stem"].eval()
    model.parts["head"].bias.requires_grad_(False)
    trainer = made(FreezeBatchNorm(affine=True), Act(), model=model)
    try:
        trainer.fit(tiny_loader(), epochs=1)
    except ArithmeticError:
        assert how == "error"
    assert model.parts["body"][1].training
    assert not model.parts["stem"].training
    off = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert off == ["parts.head.bias"]


def test_frozen_weights_do_not_move_by_momentum_or_decay_even_if_gradients_are_zeroed_in_place():
    class Zeroed(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none=False)

    model, states = Net(), States()
    optimizer = Zeroed(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.1)
    trainer = Trainer(model, optimizer, LOSS, callbacks=[FreezeBatchNorm("1 epoch", affine=True), states], device="cpu")
    trainer.fit(tiny_loader(), epochs=2)
    assert not changed(states.seen[1], states.seen[2]) & AFFINE


def test_a_second_fit_knows_how_far_training_has_come():
    states = States()
    trainer = made(FreezeBatchNorm("1 epoch"), states)
    for _ in range(2):
        trainer.fit(tiny_loader(), epochs=1)
    assert states.training == [[True, True]] * 3 + [[False, False]] * 3


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="is not a duration"):
        FreezeBatchNorm("soon")
    with pytest.raises(TypeError, match="a list of names"):
        FreezeBatchNorm(modules="body")


def test_it_says_what_it_does():
    assert FreezeBatchNorm("2 epochs", affine=True, modules=["a", "b"]).explain() == (
        "statistics, weight and bias from 2 epochs in a, b"
    )
    check_callback(FreezeBatchNorm(affine=True))
