"""Trainings of every kind, interrupted at random by signals and exceptions, end as if nothing had happened.

``storm.py`` runs it for longer: ``python -m tests.certify.storm --minutes 20 --seed 0``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.certify.kinds import ALONE, TOGETHER, Kind
from tests.certify.storm import Tally, trial

from cadenza import Callback
from cadenza.testing import Kill, Storm, certify

TRAININGS = Path(__file__).parents[1] / "checkpoint" / "trainings.py"
SHORT = ("more=ema~2", "data=persistent workers~0")


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes import the kinds; folders are in memory, since these tests end processes and cut no power."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    if Path("/dev/shm").is_dir():
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")


def check(name: str, kills: int) -> None:
    tally = Tally()
    trial(name, kills, tally)
    assert not tally.faults, tally
    assert sum(tally.kills.values()) == kills


@pytest.mark.parametrize("name", SHORT)
def test_a_few_kinds(name: str) -> None:
    check(name, 3)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", [*ALONE, *TOGETHER])
def test_every_kind(kind: str) -> None:
    check(f"{kind}~1", 5)


def test_there_are_many_kinds() -> None:
    assert len(ALONE) >= 28


def test_a_disk_over_quota_loses_nothing_but_the_saves() -> None:
    certificate = certify(f"{TRAININGS}:over_quota", kills=[Kill("after_run", 1)])
    assert certificate.equal, certificate


class Pause(Callback):
    """Stops rank 1 for a second in mid-epoch, as a machine that swaps does."""

    def after_train_iter(self, run: Any) -> None:
        if run.rank == 1 and run.clock.batches == 4:
            subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)


def paused(folder: Path, callbacks: list[Callback]) -> object:
    more = [] if folder.name == "whole" else [Pause()]
    return Kind("ranks=forked", 5)(folder, [*callbacks, *more])


@pytest.mark.long
def test_a_rank_that_is_stopped_for_a_while_changes_nothing() -> None:
    certificate = certify(paused, kills=[Kill("after_train_iter", 6, rank=1)])
    assert certificate.equal, certificate
    assert certificate.struck == {"SIGKILL": 1}


def test_the_same_seed_draws_the_same_kills() -> None:
    one, same, other = (Storm(5).draw(seed, points=100, seconds=1.0) for seed in (1, 1, 2))
    first = [next(one) for _ in range(20)]
    assert first == [next(same) for _ in range(20)]
    assert first != [next(other) for _ in range(20)]
    assert {kill.by for kill in first} == {"SIGKILL", "SIGTERM", "SIGINT"}


def test_what_cannot_be_meant_raises_an_error() -> None:
    with pytest.raises(ValueError, match="by is one of SIGKILL, SIGTERM, SIGINT, exception, not 'SIGHUP'"):
        Kill("any", by="SIGHUP")
    with pytest.raises(ValueError, match="an exception needs a point"):
        Kill(seconds=1.0, by="exception")
