"""A fork waits for threads that run: a child must not inherit a lock that one of them holds for a moment."""

from __future__ import annotations

import hashlib
import sys
import threading
import time

import pytest

from cadenza.distributed.failures import fork_safety

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are seen in /proc")


class Working(threading.Thread):
    """Works without the interpreter until it is told to end, as the threads of torch do."""

    def __init__(self):
        super().__init__(daemon=True)
        self.told = threading.Event()

    def run(self):
        while not self.told.is_set():
            hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 100_000)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.told.set()
        self.join()


def seen(thread):
    """Whether it is found at work; between two pieces of it, it may wait for the interpreter."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if thread.native_id in fork_safety.busy_threads():
            return True
        time.sleep(0.001)
    return False


def test_a_thread_that_works_is_seen_and_one_that_waits_is_not():
    waiting = threading.Event()
    other = threading.Thread(target=waiting.wait, daemon=True)
    other.start()
    with Working() as working:
        assert seen(working)
    while fork_safety.busy_threads() & {other.native_id, working.native_id}:  # until one waits and the other is gone
        time.sleep(0.001)
    assert threading.get_native_id() not in fork_safety.busy_threads()
    waiting.set()
    other.join()


def test_it_waits_for_one_that_works_but_not_for_ever(monkeypatch):
    looked = []
    monkeypatch.setattr(fork_safety, "busy_threads", lambda: looked.append(1) or len(looked) < 4)
    monkeypatch.setattr(fork_safety, "_AT_MOST", 60.0)
    fork_safety.settle()
    assert len(looked) == 4
    monkeypatch.setattr(fork_safety, "busy_threads", lambda: {1})
    monkeypatch.setattr(fork_safety, "_AT_MOST", 0.01)
    fork_safety.settle()
