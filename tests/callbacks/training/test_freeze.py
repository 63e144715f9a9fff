"""Freeze: which parts stay as they are until when, and requires_grad that comes back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.callbacks.training.freeze import Freeze, freeze, parameters_of
from cadenza.testing import tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()


def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Sequential()
        model.add_module("stem", nn.Linear(4, 5))
        model.add_module("body", nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)))
        model.add_module("head", nn.Linear(5, 3))
        return model


def made(*callbacks, model=None):
    model = net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.1)
    return Trainer(model, optimizer, LOSS, callbacks=callbacks, device="cpu")


class Changes(Callback):
    """After each span the top-level parts whose weights changed in it."""

    order = 10_000

    def __init__(self, span="epoch"):
        self.span, self.parts, self.off = span, [], []

    def plays(self):
        return {f"before_{self.span}": self._before, f"after_{self.span}": self._after, "before_forward": self._look}

    def _before(self, run):
        self.start = copy.deepcopy(run.module.state_dict())

    def _look(self, run):
        self.off.append({name for name, p in run.module.named_parameters() if not p.requires_grad})

    def _after(self, run):
        now = run.module.state_dict()
        self.parts.append({name.split(".")[0] for name in now if not torch.equal(now[name], self.start[name])})


ALL = {"stem", "body", "head"}


@pytest.mark.parametrize(
    "given",
    [
        ({"stem": "3 epochs", "body": "1 epoch"},),
        (["stem", "body"], ["3 epochs", "1 epoch"]),
    ],
    ids=["dict", "lists"],
)
def test_layer_groups_are_unfrozen_one_after_the_other(given):
    changes = Changes()
    made(Freeze(*given), changes).fit(tiny_loader(), epochs=4)
    assert changes.parts == [{"head"}, {"head", "body"}, {"head", "body"}, ALL]


def test_one_moment_for_several_names_and_none_for_good():
    changes = Changes()
    made(Freeze(["stem", "body.0"], until="1 epoch"), changes).fit(tiny_loader(), epochs=2)
    assert changes.parts == [{"body", "head"}, ALL]
    assert changes.off[0] == {"stem.weight", "stem.bias", "body.0.weight", "body.0.bias"}
    changes = Changes()
    made(Freeze("stem"), changes).fit(tiny_loader(), epochs=3)
    assert changes.parts == [{"body", "head"}] * 3


def test_a_single_parameter():
    changes = Changes()
    made(Freeze("stem.bias"), changes).fit(tiny_loader(), epochs=1)
    assert changes.off[0] == {"stem.bias"}


def test_bit_equal_to_a_loop_of_ones_own():
    trainer, model = made(Freeze("stem", until="1 epoch")), net()
    trainer.fit(tiny_loader(), epochs=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.1)
    for epoch in range(2):
        model.stem.requires_grad_(epoch > 0)
        for inputs, targets in tiny_loader():
            LOSS(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    mine, theirs = trainer.model.state_dict(), model.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_in_the_middle_of_an_epoch():
    changes = Changes("train_iter")
    trainer = made(Freeze({"stem": "2 steps", "body": "3 batches"}), changes)
    trainer.fit(tiny_loader(40, 8), epochs=1)
    assert changes.parts == [{"head"}, {"head"}, {"head", "stem"}, ALL, ALL]


def test_overlapping_names_freeze_as_long_as_any_of_them_says():
    changes = Changes("train_iter")
    made(Freeze({"body": "1 step", "body.0.weight": "2 steps", "body.0": "3 steps"}), changes).fit(
        tiny_loader(32, 8), epochs=1
    )
    first = {"body.0.weight", "body.0.bias"}
    assert changes.off == [first | {"body.2.weight", "body.2.bias"}, first, first, set()]


def test_under_accumulation_steps_are_real_steps():
    changes = Changes("train_iter")
    made(Accumulate(2), Freeze("stem", until="1 step"), changes).fit(tiny_loader(32, 8), epochs=1)
    assert [bool(off) for off in changes.off] == [True, True, False, False]
    assert changes.parts == [set(), {"body", "head"}, set(), ALL]


@pytest.mark.parametrize("how", ["end", "stop", "error"])
def test_requires_grad_comes_back_however_the_epoch_ends(how):
    class Act(Callback):
        def after_forward(self, run):
            if how == "error":
                raise ArithmeticError
            if how == "stop":
                run.stop("enough")

    model = net()
    model.stem.bias.requires_grad_(False)
    trainer = made(Freeze(["stem", "body"]), Act(), model=model)
    try:
        trainer.fit(tiny_loader(), epochs=1)
    except ArithmeticError:
        assert how == "error"
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["stem.bias"]


def test_a_second_fit_and_a_later_start_know_how_far_training_has_come():
    changes = Changes()
    trainer = made(Freeze("stem", until="1 epoch"), changes)
    for _ in range(2):
        trainer.fit(tiny_loader(), epochs=1)
    assert changes.parts == [{"body", "head"}, ALL]


def test_tied_weights_are_frozen_under_each_of_their_names():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    frozen = parameters_of(model, ["1"])
    assert [id(p) for p in frozen] == [id(model[0].weight), id(model[1].bias)]


def test_the_plain_function_lets_go_of_gradients():
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    layer.bias.requires_grad_(False)
    assert [id(p) for p in freeze(layer.parameters())] == [id(layer.weight)]
    assert layer.weight.grad is None


def test_what_is_not_there_or_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="no parameter in 'bodi'; did you mean 'body'\\? Its parts: stem, body, head"):
        made(Freeze("bodi", until="0 epochs")).fit(tiny_loader(), epochs=1)
    trainer = made(Freeze(["0", "2"]), model=tiny_classifier())
    with pytest.raises(RuntimeError, match="leaves no parameter to train"):
        trainer.fit(tiny_loader(), epochs=1)
    assert all(p.requires_grad for p in trainer.model.parameters())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (([],), "at least one name"),
        (({},), "at least one name"),
        ((["a", 3],), "at least one name"),
        (("",), "at least one name"),
        (({"a": "1 epoch"}, "2 epochs"), "a dict says"),
        ((["a", "b"], ["1 epoch"]), "one for each of the 2 names, not .'1 epoch'"),
        (("a", "soon"), "is not a duration"),
    ],
)
def test_bad_arguments_are_refused(given, says):
    with pytest.raises((TypeError, ValueError), match=says):
        Freeze(*given)


def test_it_says_what_it_does():
    assert Freeze({"stem": "2 epochs", "body": None}).explain() == "stem until 2 epochs, body for good"
