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


class Patience(threading.Event):
    """Is over when the test says so, and not by the clock."""

    def __init__(self):
        super().__init__()
        self.runs_out = threading.Event()

    def wait(self, timeout=None):
        assert self.runs_out.wait(60)
        return False


def test_who_is_through_is_not():
    run = Busy()
    one = Standing(run, rank=0)
    one.over = Patience()
    before = set(threading.enumerate())
    one.interrupt({"rank": 1})
    (interrupting,) = (thread for thread in set(threading.enumerate()) - before if thread.name == "cadenza interrupts")
    one.end()
    one.over.runs_out.set()
    interrupting.join(60)
    wait(0.05)  # it would be raised here
    assert not interrupting.is_alive()
    assert one.where() == "outside a run"
