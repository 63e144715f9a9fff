"""Runs of several processes that were broken off go on to the last bit, each process with its own random numbers."""

from __future__ import annotations

import tempfile

import pytest

from ..processes import ranks
from .crew import play
from .trainings import Tempered, difference, train

pytestmark = pytest.mark.timeout(300)
CASES = {
    "plain": {},
    "loader workers": {"workers": 1},
    "accumulation and a ragged end": {"accumulate": 2, "samples": 33, "norm": False},
    "a process without a sample in the last batch": {"samples": 33, "batch_size": 16, "norm": False},
    "every epoch": {"every": "1 epoch"},
    "a request that not all know yet": {"ends_epoch": 2},
    "a criterion that each process trains alone": {"criterion": Tempered, "accumulate": 2},
    "buffers that are not persistent and added groups": {"grows": True},
}
STOPS = {"a process without a sample in the last batch": (4, 5), "a request that not all know yet": (3, 7)}


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as folder:
        scenarios = []
        for place, (name, options) in enumerate(CASES.items()):
            scenarios.append((lambda to, options: train(to, **options), (f"{folder}/whole-{place}", options)))
            for stop in (*STOPS.get(name, (2, 8)), None):
                how = (f"{folder}/killed-{place}", options, stop)
                scenarios.append((lambda to, options, stop: train(to, stop, **options), how))
        ranks(play, folder, scenarios, results="all", timeout=280)
        yield folder


@pytest.mark.parametrize("place", range(len(CASES)), ids=list(CASES))
def test_a_resumed_run_equals_a_whole_one(folder, place):
    assert difference(f"{folder}/whole-{place}", f"{folder}/killed-{place}") is None
