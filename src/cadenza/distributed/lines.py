"""The connections through which collectives go, so that a process can be freed from one that will never end."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import TypeAlias

from torch import distributed as dist

Line: TypeAlias = tuple[int, object, object]


def open_lines() -> set[Line]:
    """The TCP connections that this process has open: number, own end, other end. Empty where that cannot be known."""
    found: set[Line] = set()
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError, ValueError):
                    found |= _line(int(name))
            break
    return found


def _line(number: int) -> set[Line]:
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        return set()
    with socket.socket(fileno=os.dup(number)) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return set()
        return {(number, one.getsockname(), one.getpeername())}


def _hold(line: Line) -> socket.socket | None:
    """The connection, as one of our own; None if its number belongs to another by now."""
    number, own, other = line
    with contextlib.suppress(OSError):
        one = socket.socket(fileno=os.dup(number))
        with contextlib.suppress(OSError):
            if (one.getsockname(), one.getpeername()) == (own, other):
                return one
        one.close()
    return None


def cut(lines: set[Line]) -> list[socket.socket]:
    """Ends every collective of this process that waits: nccl aborts, and nothing more is read from the connections of
    gloo, which knows no abort. Afterwards the process groups cannot be used any more.

    The connections are returned, open: gloo forgets a send that fails while it answers a message, and who waits for
    that send waits for ever. So nobody may find one closed before it has cut its own end.
    """
    kept = [one for line in lines & open_lines() if (one := _hold(line)) is not None]
    for one in kept:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RD)
    with contextlib.suppress(Exception):
        if dist.is_initialized() and "nccl" in str(dist.get_backend_config()):
            dist.group.WORLD.abort()  # type: ignore[union-attr]
    return kept
