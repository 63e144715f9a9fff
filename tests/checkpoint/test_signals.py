"""A run that is warned by a signal saves itself, ends with the right code, and goes on to the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cadenza
from cadenza.checkpoint import Shelf
from cadenza.comparison import comparable, first_difference

SOURCE = Path(cadenza.__file__).parents[1]
HERE = Path(__file__).parent
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import trainings
from cadenza import Callback, Order

class Send(Callback):
    order = Order.PREPARE
    def __init__(self, place, name, count, group):
        self.place, self.number, self.left, self.group = place, getattr(signal, name), count, group
    def plays(self):
        return {self.place: self.play}
    def play(self, run):
        if run.mode == "fit" and (self.place != "after_iter" or run.stage == "val"):
            self.left -= 1
            if self.left == 0:
                (os.killpg if self.group else os.kill)(os.getpgid(0) if self.group else os.getpid(), self.number)

folder, name, place, number, count, group = Path(sys.argv[2]), sys.argv[3], *sys.argv[4:8]
callbacks = [] if place == "none" else [Send(place, number, int(count), group == "group")]
getattr(trainings, name)(folder, callbacks)
"""


def play(
    folder: Path, name: str, place: str = "none", number: str = "SIGTERM", count: int = 1, group: bool = False
) -> Any:
    words = [str(HERE), str(folder), name, place, number, str(count), "group" if group else "alone"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
        start_new_session=True,
    )


def end_of(folder: Path) -> dict[str, Any]:
    return comparable(Shelf(folder).read("last").state)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    ends = {}
    for name in ("plain", "two_workers"):
        folder = tmp_path_factory.mktemp(name)
        assert play(folder, name).returncode == 0
        ends[name] = end_of(folder)
    return ends


CASES = [
    ("plain", "before_forward", "SIGTERM", 8, False),
    ("plain", "before_fetch", "SIGTERM", 9, False),
    ("plain", "after_iter", "SIGTERM", 2, False),  # in validation
    ("plain", "before_save", "SIGTERM", 2, False),
    ("plain", "after_epoch", "SIGINT", 2, False),
    ("plain", "before_backward", "SIGUSR1", 7, False),
    ("two_workers", "before_step", "SIGTERM", 5, True),
    ("two_workers", "before_fetch", "SIGINT", 6, True),
    ("two_workers", "after_iter", "SIGTERM", 1, True),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "place", "number", "count", "group"), CASES)
def test_a_warned_run_saves_and_goes_on(
    name: str, place: str, number: str, count: int, group: bool, tmp_path: Path, whole: dict[str, dict[str, Any]]
) -> None:
    done = play(tmp_path, name, place, number, count, group)
    assert done.returncode == (-signal.SIGINT if number == "SIGINT" else 143), done.stderr
    before = Shelf(tmp_path).read("last")
    assert before.state["clock"]["batches"] > 0
    again = play(tmp_path, name)
    assert again.returncode == 0, again.stderr
    assert first_difference(whole[name], end_of(tmp_path)) is None
