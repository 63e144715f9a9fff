"""The connections through which collectives go, so that a process can be freed from one that will never end."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from typing import TypeAlias

from torch import distributed as dist

Line: TypeAlias = tuple[int, object, object]
_PATIENCE = 0.25
"""Seconds that gloo has to close what it reads no more from. It takes a millisecond; now and then one stays open."""


def open_lines() -> set[Line]:
    """The TCP connections that this process has open: number, own end, other end. Empty where that cannot be known."""
    found: set[Line] = set()
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with contextlib.suppress(ValueError):
                    found |= _line(int(name))
            break
    return found


def _line(number: int) -> set[Line]:
    """The connection with that number, if there is one. Nothing is opened for that: there may be no number left."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            one = socket.socket(fileno=number)
            try:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    return {(number, one.getsockname(), one.getpeername())}
            finally:
                one.detach()
    return set()


def _hold(line: Line) -> socket.socket | None:
    """The connection, as one of our own; None if its number belongs to another by now."""
    with contextlib.suppress(OSError):
        one = socket.socket(fileno=os.dup(line[0]))
        if any(line[1:] == found[1:] for found in _line(one.fileno())):
            return one
        one.close()
    return None


def _read_no_more(line: Line) -> list[socket.socket]:
    """The connection as one of our own, of which nothing more is read. Where no number is left for that, it is only
    shut down."""
    if (one := _hold(line)) is not None:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RD)
        return [one]
    if line in _line(line[0]):
        with contextlib.suppress(OSError):
            one = socket.socket(fileno=line[0])
            try:
                one.shutdown(socket.SHUT_RD)
            finally:
                one.detach()
    return []


def cut(lines: set[Line]) -> list[socket.socket]:
    """Ends every collective of this process that waits: nccl aborts, and nothing more is read from the connections of
    gloo, which knows no abort. Afterwards the process groups cannot be used any more.

    The connections are returned, open: gloo forgets a send that fails while it answers a message, and who waits for
    that send waits for ever. So nobody may find one closed before gloo has closed its own end, as it does when it has
    read its last; that is waited for.
    """
    kept = [one for line in sorted(lines, key=lambda line: line[0]) for one in _read_no_more(line)]
    with contextlib.suppress(Exception):
        if dist.is_initialized() and "nccl" in str(dist.get_backend_config()):
            dist.group.WORLD.abort()  # type: ignore[union-attr]
    until = time.monotonic() + _PATIENCE
    while any(line in _line(line[0]) for line in lines) and time.monotonic() < until:
        time.sleep(0.001)
    return kept
