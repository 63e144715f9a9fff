"""What the operating system and the file system know about a lock file."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any

_FAR = 2**30
"""Windows locks bytes, and others could not read them: so it is one that the file does not have."""


def lock_file(fd: int) -> bool | None:
    """Locks an open file until it is closed or the process ends. False if another process has it; None if this file
    system has no locks."""
    try:
        if os.name == "nt":
            import msvcrt

            system: Any = msvcrt
            os.lseek(fd, _FAR, os.SEEK_SET)
            system.locking(fd, system.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return False
        if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EIO):
            return None
        raise
    return True


def content_of(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    return os.read(fd, 4096)


def write_over(fd: int, content: bytes) -> None:
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, content)


def is_at(fd: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        there, here = os.stat(path), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def touch(fd: int, path: Path) -> None:
    """Sets the time of the file to what its file system takes for now."""
    os.utime(fd if os.utime in os.supports_fd else path)


def age_of(fd: int, folder: Path) -> float:
    """Seconds since the file was touched, by the clock of the file system: those of other machines may differ."""
    probe = folder / f".clock-{os.getpid()}-{time.monotonic_ns()}"
    made = os.open(probe, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        touch(made, probe)
        return os.fstat(made).st_mtime - os.fstat(fd).st_mtime
    finally:
        os.close(made)
        with contextlib.suppress(OSError):
            os.unlink(probe)
