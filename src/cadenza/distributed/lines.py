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


def cut(lines: set[Line]) -> None:
    """Ends every collective that waits, in this process and through it in the others: nccl aborts, the connections
    of gloo, which knows no abort, are shut down. Afterwards the process groups cannot be used any more."""
    for number, own, other in lines & open_lines():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
            if (one.getsockname(), one.getpeername()) == (own, other):
                one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(Exception):
        if dist.is_initialized() and "nccl" in str(dist.get_backend_config()):
            dist.group.WORLD.abort()  # type: ignore[union-attr]
