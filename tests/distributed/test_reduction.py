"""Gradients that are put together after the backward are those that DistributedDataParallel puts together during it."""

from __future__ import annotations

import tempfile

import pytest
import torch
from torch import distributed as dist
from torch import nn

from cadenza import Callback, launch
from cadenza.callbacks import Accumulate, Freeze, GradientClip
from cadenza.testing import tiny_classifier, tiny_loader

from .crew import Mine, fitted, play

pytestmark = pytest.mark.timeout(300)


class Apart(Callback):
    """Does by hand what recorded steps need."""

    def before_run(self, run):
        run.training_state.strategy.reduce_apart(run, run._ensemble)
        assert run._ensemble.reduction is not None


class StopsOne(Callback):
    """Rank 1 wants to stop, at a batch that the others do not know."""

    def after_train_iter(self, run):
        if run.rank == 1 and run.clock.batches == 5:
            run.stop("rank 1 has had enough")

    def after_run(self, run):
        run.store["reason"] = run.stop_reason


def normed():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def uneven():
    """Rank 1 has one batch less than rank 0, and a smaller one."""
    batches, rank = list(tiny_loader()), dist.get_rank()
    inputs, targets = batches[0]
    return Mine(batches[:3] if rank == 0 else [batches[1], (inputs[:2], targets[:2])])


CASES = {
    "plain": lambda: ([], {}),
    "clipped": lambda: ([GradientClip(0.1)], {}),
    "accumulated": lambda: ([Accumulate(3)], {}),
    "normed": lambda: ([], {"model": normed()}),
    "normed and accumulated": lambda: ([Accumulate(2)], {"model": normed()}),
    "uneven": lambda: ([], {"train": uneven()}),
    "stopped by one": lambda: ([StopsOne()], {}),
    "frozen at first": lambda: ([Freeze("0", until="1 epoch")], {"model": tiny_classifier()}),
}


def both(name):
    """How a training ends with torch's own way, and with ours."""
    found = []
    for more in ([], [Apart()]):
        callbacks, options = CASES[name]()
        found.append(fitted([*callbacks, *more], **options))
    return [[one["error"], one["clock"], one["reason"], one["weights"]] for one in found]


def refused():
    """While a step is recorded, nothing but the gradients may be talked about."""

    class Talks(Callback):
        def after_train_iter(self, run):
            with run._ensemble.talking(lambda talk: None, only=True):
                dist.all_reduce(torch.zeros(1))

    return fitted([Apart(), Talks()])["error"]


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.used(inputs)


def without_gradient():
    return fitted([Apart()], model=Branches())["error"]


@pytest.fixture(scope="module")
def answers():
    scenarios = [(both, (name,)) for name in CASES]
    with tempfile.TemporaryDirectory() as folder:
        return launch(play, folder, [*scenarios, (refused, ()), (without_gradient, ())], results="all", timeout=280)


@pytest.mark.parametrize("place", range(len(CASES)), ids=list(CASES))
def test_weights_are_the_same_to_the_bit(answers, place):
    for rank in range(2):
        usual, apart = answers[rank][place]
        assert usual[:3] == apart[:3]
        assert usual[0] is None
        assert torch.equal(usual[3], apart[3])
    assert torch.equal(answers[0][place][1][3], answers[1][place][1][3])


def test_who_is_asked_to_stop_by_one_stops(answers):
    place = list(CASES).index("stopped by one")
    assert [answers[rank][place][1][2] for rank in range(2)] == ["rank 1 has had enough (asked by rank 1)"] * 2


def test_nothing_else_is_talked_about(answers):
    for rank in range(2):
        assert "LonelyCollective: the step talks to the other processes in its midst (allreduce" in answers[rank][-2]


def test_a_parameter_without_a_gradient_is_named(answers):
    for rank in range(2):
        assert "unused.weight has no gradient" in answers[rank][-1]
        assert "find_unused_parameters=True" in answers[rank][-1]
