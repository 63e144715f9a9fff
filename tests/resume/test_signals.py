"""A run that is warned by a signal saves itself, ends with the right code, and goes on to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cadenza
from cadenza.certify.compare import comparable, first_difference
from cadenza.checkpoint import Shelf

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are started by fork")


class Starter:
    """Trains in processes; see ``starter.py``. The whole run of each training is made once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wholes: dict[str, dict[str, Any]] = {}
        environment = {**os.environ, "PYTHONPATH": str(Path(cadenza.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parents[1] / "checkpoint" / "starter.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def play(self, folder: Path, name: str, send: tuple[str, str, int, bool] | None = None) -> tuple[int, str]:
        """The exit code of a training, and what it said."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"folder": str(folder), "name": name, "send": send}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()), Path(f"{folder}.txt").read_text(encoding="utf-8")

    def whole(self, name: str) -> dict[str, Any]:
        if name not in self.wholes:
            code, said = self.play(self.root / name, name)
            assert code == 0, said
            self.wholes[name] = end_of(self.root / name)
        return self.wholes[name]

    def close(self) -> None:
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()


def end_of(folder: Path) -> dict[str, Any]:
    return comparable(Shelf(folder).read("last").state)


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    """In memory where the system has such folders: these tests end processes, and cut no power."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as root:
        started = Starter(Path(root))
        yield started
        started.close()


CASES = [
    ("short", "before_forward", "SIGTERM", 8, False),
    ("short", "before_fetch", "SIGTERM", 9, False),
    ("short", "after_iter", "SIGTERM", 2, False),  # in validation
    ("short", "before_save", "SIGTERM", 2, False),
    ("short", "after_epoch", "SIGINT", 1, False),
    ("short", "before_backward", "SIGUSR1", 7, False),
    ("two_workers", "before_step", "SIGTERM", 5, True),
    ("two_workers", "before_fetch", "SIGINT", 6, True),
    ("two_workers", "after_iter", "SIGTERM", 1, True),
    ("ended_unsaved", "after_epoch", "SIGTERM", 2, False),  # nobody would save after it
    ("ended_unsaved", "after_epoch", "SIGINT", 2, False),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "place", "number", "count", "group"), CASES)
def test_a_warned_run_saves_and_goes_on(
    name: str, place: str, number: str, count: int, group: bool, starter: Starter
) -> None:
    folder = starter.root / f"{name}-{place}-{number}"
    code, said = starter.play(folder, name, (place, number, count, group))
    assert code == (-signal.SIGINT if number == "SIGINT" else 143), said
    assert Shelf(folder).read("last").state["clock"]["batches"] > 0
    code, said = starter.play(folder, name)
    assert code == 0, said
    assert first_difference(starter.whole(name), end_of(folder)) is None


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["traced", pytest.param("compiled", marks=pytest.mark.long)])
def test_a_signal_in_the_first_compilation(name: str, starter: Starter) -> None:
    """The step that is compiled is finished and saved. What was compiled rounds otherwise than the first step of a
    process, which is played as usual, so that the end is the same but for the last bits."""
    folder = starter.root / f"{name}-warned"
    code, said = starter.play(folder, name, ("compile", "SIGTERM", 1, False))
    assert code == 143, said
    assert Shelf(folder).read("last").state["clock"]["batches"] == 2
    code, said = starter.play(folder, name)
    assert code == 0, said
    end, whole = end_of(folder), starter.whole(name)
    assert end["clock/batches"] == whole["clock/batches"] == 5
    torch.testing.assert_close(weights(end), weights(whole))


def weights(end: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in end.items() if name.startswith("model/")}
