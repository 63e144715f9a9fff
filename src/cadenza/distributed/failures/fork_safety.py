"""Forks in a process whose collectives are carried out by other threads.

Before Python 3.12 the child of a fork waits for ever if at that very moment another thread was entering the
interpreter for the first time: it inherits a lock whose holder is not there. The threads of gloo do so each time that
they let go of the tensors of a collective, a moment after it has ended, which is when a loader's workers are started.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

from torch import distributed as dist

_MOMENT, _AT_MOST = 0.002, 0.25
_registered = False


def wait_before_forks() -> None:
    """From here on every fork of this process waits until its other threads are at rest, as long as it is one of
    several that train together."""
    global _registered
    if not _registered and sys.version_info < (3, 12) and hasattr(os, "register_at_fork"):
        _registered = True
        os.register_at_fork(before=_before)


def _before() -> None:
    if dist.is_initialized():
        settle()


def settle() -> None:
    """Lets the other threads have the interpreter until all of them rest; after a quarter of a second it goes on.

    >>> settle()
    """
    until = time.monotonic() + _AT_MOST
    time.sleep(_MOMENT)
    while busy_threads() and time.monotonic() < until:
        time.sleep(_MOMENT)


def busy_threads() -> set[int]:
    """The other threads of this process that run or could; none where that cannot be known.

    One that waits for the interpreter does not count: it has entered, and holds no lock that a child would miss.
    """
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if int(name) != threading.get_native_id() and _state(name) == "R":
                    found.add(int(name))
    return found


def _state(thread: str) -> str:
    with open(f"/proc/self/task/{thread}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]
