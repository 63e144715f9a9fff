"""An exception in one process, at every point: the others end at once, with what that one raised."""

from __future__ import annotations

import tempfile
import threading

import pytest
import torch
from torch import nn

from cadenza import Callback
from cadenza.distributed import DDP
from cadenza.points import POINTS, Kind
from cadenza.testing import tiny_classifier

from ..processes import ranks
from .crew import fitted, play, trainer_with

pytestmark = pytest.mark.timeout(300)
NEVER = {"before_save", "after_save", "after_load", "after_error", "after_best"}
PLAYED = [
    name
    for name, point in POINTS.items()
    if point.kind is not Kind.BEHAVIOUR and name not in NEVER and "test" not in name and "pred" not in name
]


class Fault(Callback):
    """Raises at one point on one rank, in the second epoch if that point is in one."""

    def __init__(self, point, rank):
        self.point, self.rank = point, rank

    def plays(self):
        return {self.point: self.fail}

    def fail(self, run):
        first = POINTS[self.point].span in ("", "run") and self.point != "after_log"
        if run.rank == self.rank and (first or run.epoch == 1):
            raise ValueError("a fault")


def fault(point, rank):
    return fitted([Fault(point, rank)])


def fault_in_the_loop(rank):
    """Own code of one rank fails between two verbs."""
    trainer = trainer_with([])
    try:
        with trainer.run(epochs=2) as run:
            for _ in run.epochs():
                for _ in run.train(__import__("cadenza.testing").testing.tiny_loader()):
                    run.train_step()
                    if run.rank == rank and run.epoch == 1:
                        raise ValueError("a fault")
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def fault_at_the_beginning(rank):
    """While the others wrap their models, one refuses its own."""
    import os

    model = nn.DataParallel(tiny_classifier()) if int(os.environ["RANK"]) == rank else tiny_classifier()
    return fitted([], model=model)


class Ends(Fault):
    """Notes whether the run can still be interrupted while it ends."""

    def plays(self):
        return {**super().plays(), "after_error": self.note}

    def note(self, run):
        run.store["reason"] = run.processes._standing.over.is_set()


def end_in_peace(rank):
    return fitted([Ends("before_step", rank)])


@pytest.fixture(scope="module")
def answers():
    scenarios = [(fault, (point, place % 2)) for place, point in enumerate(PLAYED)]
    with tempfile.TemporaryDirectory() as folder:
        more = [(fault_at_the_beginning, (1,)), (end_in_peace, (1,)), (fault_in_the_loop, (1,))]
        return ranks(play, folder, [*scenarios, *more], results="all", timeout=280)


@pytest.mark.parametrize("place", range(len(PLAYED)), ids=PLAYED)
def test_all_end_with_the_first_error(answers, place):
    point, failing = PLAYED[place], place % 2
    own, other = answers[failing][place], answers[1 - failing][place]
    assert own["error"] == "ValueError: a fault"
    assert other["error"].startswith(f"RankFailed: rank {failing} failed in Fault at {point}")
    assert other["error"].endswith("ValueError: a fault")
    assert "in fail" in other["notes"][0]  # the traceback of the rank that failed
    assert "raise ValueError" in other["notes"][0]
    assert max(own["seconds"], other["seconds"]) < 60


def test_a_fault_in_a_loop_of_ones_own_is_told_too(answers):
    assert answers[1][-1] == "ValueError: a fault"
    assert answers[0][-1].startswith("RankFailed: rank 1 failed in ")


def test_a_fault_while_the_models_are_wrapped_is_told_too(answers):
    assert answers[1][-3]["error"].startswith("TypeError: the model is wrapped in DataParallel already")
    assert answers[0][-3]["error"].startswith("RankFailed: rank 1 failed in the run (epoch 1): TypeError: the model")


def test_who_ends_by_itself_after_a_failure_is_not_interrupted(answers):
    assert [one[-2]["reason"] for one in answers] == [True, True]


def without_channel(strategy, rank=None):
    callbacks = [] if rank is None else [Fault("before_step", rank)]
    found = fitted(callbacks, strategy=strategy)
    found["threads"] = [thread.name for thread in threading.enumerate()]
    return found


def test_the_failure_channel_can_be_switched_off():
    quiet = ranks(without_channel, DDP(failure_channel=False), results="all")
    heard = ranks(without_channel, DDP(), results="all")
    assert [one["error"] for one in (*quiet, *heard)] == [None] * 4
    assert torch.equal(quiet[0]["weights"], heard[0]["weights"])
    assert "cadenza lifeline" in heard[0]["threads"]
    assert "cadenza lifeline" not in quiet[0]["threads"]


def test_without_the_channel_a_failure_is_known_when_the_collective_fails():
    own, other = ranks(without_channel, DDP(failure_channel=False, timeout=10.0), 1, results="all")[::-1]
    assert own["error"] == "ValueError: a fault"
    assert other["error"] is not None
    assert "RankFailed" not in other["error"]
