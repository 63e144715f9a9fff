"""A model that FSDP has spread is saved whole, and goes on to the last bit; also with another number of processes."""

from __future__ import annotations

import tempfile

import pytest

from cadenza import launch

from .crew import play
from .trainings import difference, train

HOW = {"strategy": "fsdp", "norm": False, "samples": 34, "accumulate": 2}


def go(folder, stop, options):
    return train(folder, stop, **options)


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as folder:
        whole = [(go, (f"{folder}/whole", None, HOW))]
        killed = [(go, (f"{folder}/killed", stop, HOW)) for stop in (4, 11, None)]
        launch(play, folder, whole + killed, results="all", timeout=100)
        yield folder


def test_a_resumed_run_equals_a_whole_one(folder):
    assert difference(f"{folder}/whole", f"{folder}/killed") is None
