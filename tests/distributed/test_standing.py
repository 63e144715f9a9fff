"""A process that is busy when another failed is interrupted, but never after its run is over."""

from __future__ import annotations

import threading
import time

import pytest

from cadenza.distributed import standing
from cadenza.distributed.failure import RankFailed
from cadenza.distributed.standing import Standing


class Busy:
    """Stands for a run of this thread."""

    def __init__(self):
        self._thread = threading.get_ident()


def wait(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_who_is_busy_is_interrupted(monkeypatch):
    monkeypatch.setattr(standing, "_PATIENCE", 0.01)
    run = Busy()
    one = Standing(run, rank=0)

    def work():
        one.interrupt({"rank": 1})
        wait(30)

    with pytest.raises(RankFailed):
        work()


def test_who_is_through_is_not(monkeypatch):
    monkeypatch.setattr(standing, "_PATIENCE", 0.2)
    run = Busy()
    one = Standing(run, rank=0)
    one.interrupt({"rank": 1})
    one.end()
    wait(0.5)
    assert one.where() == "outside a run"
