"""A process that is busy when another failed is interrupted, but never after its run is over."""

from __future__ import annotations

import threading
import time

import pytest
from tests.processes import run

from cadenza.distributed.failures import interrupt
from cadenza.distributed.failures.interrupt import Standing
from cadenza.distributed.failures.rank_errors import RankFailed


class Busy:
    """Stands for a run of this thread."""

    def __init__(self):
        self.thread = threading.get_ident()


def wait(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_who_is_busy_is_interrupted(monkeypatch):
    monkeypatch.setattr(interrupt, "_PATIENCE", 0.01)
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


@pytest.mark.parametrize("word", ["end", "calm"])
def test_who_is_through_or_ends_by_itself_is_not(word):
    run = Busy()
    one = Standing(run, rank=0)
    one.over = Patience()
    before = set(threading.enumerate())
    one.interrupt({"rank": 1})
    (interrupting,) = (thread for thread in set(threading.enumerate()) - before if thread.name == "cadenza interrupts")
    getattr(one, word)()
    one.over.runs_out.set()
    interrupting.join(60)
    wait(0.05)  # it would be raised here
    assert not interrupting.is_alive()
    one.end()
    assert one.where() == "outside a run"


BEGIN = """
import sys, threading, time
from cadenza.distributed.failures import interrupt
from cadenza.distributed.failures.rank_errors import RankFailed

class Busy:
    thread = threading.get_ident()

interrupt._PATIENCE = interrupt._AT_LAST = 0.05
run = Busy()
one = interrupt.Standing(run, rank=0)
failure = {"rank": 1, "said": "ValueError: odd"}
"""


def ended(script):
    """How a process ends that does this while another one fails."""
    return run(BEGIN + script)


STUCK = """
def wait_for_ever():
    lock.acquire()

def fail():
    place = wait_for_ever.__code__.co_firstlineno + 1
    while sys._current_frames()[run.thread].f_lineno != place:
        time.sleep(0.01)
    one.interrupt(failure)

lock = threading.Lock()
lock.acquire()
threading.Thread(target=fail, daemon=True).start()
wait_for_ever()
"""


def test_who_cannot_be_interrupted_is_ended():
    found = ended(STUCK)
    assert found.returncode == 1
    assert "rank 1 failed (ValueError: odd), but rank 0 waits where nothing can interrupt it" in found.stderr
    assert "in wait_for_ever" in found.stderr


HANDLING = """
try:
    one.interrupt(failure)
    while True:
        pass
except RankFailed:
    time.sleep(1)  # what it does at its end takes longer
print("done")
"""


def test_who_was_interrupted_has_time_to_end():
    found = ended(HANDLING)
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr
