"""One run at a time in one folder, on one machine or on several that share a file system."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Self

from cadenza.foundation.locking.owner import Owner
from cadenza.foundation.locking.system import age_of, content_of, is_at, lock_file, touch, write_over

log = logging.getLogger("cadenza")
NAME = ".lock"
PATIENCE = 2.0
"""Seconds that a run waits for a lock whose owner is alive: a process that only asks holds it for an instant, and one
that was told to end needs a moment."""
BEAT, SILENCE = 10.0, 60.0
"""Seconds between two signs of life, and without one after which an owner on another machine is given up."""
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()
_registered = False


class FolderLocked(RuntimeError):
    """Another run is writing into this folder."""


class FolderLock:
    """The lock of ``folder``: a file ``.lock`` in it while a run writes there. ``advice`` is for the error message.

    The operating system releases it when the process ends, however it ends. An owner on another machine, of which the
    system here may know nothing, touches the file every ``BEAT`` seconds; after ``SILENCE`` seconds without a touch the
    lock is taken over. Why so: decision 73.
    """

    def __init__(self, folder: Path, advice: str) -> None:
        self.folder, self.path, self.advice = folder, folder / NAME, advice
        self._fd: int | None = None
        self._owner: Owner | None = None
        self._pulse: threading.Thread | None = None
        self._ended = threading.Event()

    # Taking it -------------------------------------------------------------------------------------------------------

    def acquire(self) -> Self:
        """Takes the lock; raises ``FolderLocked`` if another run has it. A folder that cannot be written to gets
        none."""
        sight, until = _Sight(self.folder), time.monotonic() + PATIENCE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while not self._take(sight):
                if sight.gone is not True and (sight.gone is False or sight.owner is None):
                    self._refuse_after(until, sight)
                time.sleep(0.05)
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            log.info("%s cannot be locked, since it cannot be written to: %s", self.folder, error)
        return self

    def _refuse_after(self, until: float, sight: _Sight) -> None:
        if time.monotonic() > until:
            who = "" if sight.owner is None else f" ({sight.owner})"
            raise FolderLocked(f"another run is writing into {self.folder}{who}; {self.advice}")

    def _take(self, sight: _Sight) -> bool:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        try:
            free = lock_file(fd)
            if not is_at(fd, self.path):  # the one before has just released it, and removed the file
                sight.gone = True
                return False
            if not sight.look(fd, free):
                return False
            if free is not False:
                self._hold(fd)
                fd = -1
        finally:
            if fd >= 0:
                os.close(fd)
        if free is False:
            self._replace()
        if free is not True:
            time.sleep(0.1)  # without a lock of the system two may have come here at once: the last one has it
        if self.is_held:
            return True
        self._let_go()
        return False

    def _replace(self) -> None:
        """Puts a new file in the place of one that is still locked, though its owner is gone."""
        draft = self.path.with_name(f"{NAME}.{os.getpid()}")
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        lock_file(fd)
        self._hold(fd)
        os.replace(draft, self.path)

    def _hold(self, fd: int) -> None:
        self._fd, self._owner = fd, Owner.here()
        try:
            write_over(fd, self._owner.text())
        except OSError as error:  # the disk is full; the lock of the system still counts
            log.info("the lock of %s does not say whose it is: %s", self.folder, error)
            self._owner = None
        self._ended = threading.Event()
        self._pulse = threading.Thread(target=self._beat, args=(fd, self._ended), name="cadenza lock", daemon=True)
        self._pulse.start()
        _held.add(self)
        _close_in_children()

    # Having it -------------------------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether this lock is the one in the folder. Another run may have taken over from a process that was silent
        for too long."""
        if self._fd is None or self._owner is None:
            return self._fd is not None and is_at(self._fd, self.path)
        owner = _owner_at(self.path)
        return owner is not None and owner.token == self._owner.token

    def check(self) -> None:
        """Raises ``FolderLocked`` if another run has taken over. If somebody removed the folder, it is locked again."""
        if self._fd is None:
            return
        if not self.path.exists():
            self._let_go()
            self.acquire()
        elif not self.is_held:
            raise FolderLocked(
                f"another run ({_owner_at(self.path)}) has taken over {self.folder}, since nothing was heard of this "
                f"one for {SILENCE:g} seconds; {self.advice}"
            )

    def _beat(self, fd: int, ended: threading.Event) -> None:
        while not ended.wait(BEAT):
            with contextlib.suppress(OSError):
                touch(fd, self.path)

    def release(self) -> None:
        """Lets another run have the folder."""
        if self._fd is not None and self.is_held:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)  # where an open file cannot be removed
                os.unlink(self.path)
        self._let_go()

    def _let_go(self) -> None:
        fd, pulse, self._fd, self._pulse, self._owner = self._fd, self._pulse, None, None, None
        self._ended.set()
        if pulse is not None:
            pulse.join()  # it must not touch a file that gets the same number
        if fd is not None:
            os.close(fd)


class _Sight:
    """What was seen of the owner of a lock since we began to look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner: Owner | None = None
        self.gone: bool | None = None
        self._first: tuple[str, float] | None = None

    def look(self, fd: int, free: bool | None) -> bool:
        """Whether nobody has the lock. ``gone`` is None as long as it is not known."""
        self.owner = Owner.parse(content_of(fd))
        if self.owner is None:
            self.gone = None if free is False else True
        elif free and self.owner.is_of_this_kernel:
            self.gone = True  # one kernel: if its owner lived, the lock would not be free
        else:
            dead = self.owner.is_dead()
            self.gone = self._is_silent(fd, self.owner) if dead is None else dead
        return self.gone is True

    def _is_silent(self, fd: int, owner: Owner) -> bool | None:
        touched = owner.token, os.fstat(fd).st_mtime
        if self._first is None:
            self._first = touched
        if touched != self._first:
            return False
        left = SILENCE - age_of(fd, self.folder)
        if left > 0:
            time.sleep(min(left, 0.5))
            log.info(
                "%s is locked by %s, which may be gone: %.0f s more without a sign of it", self.folder, owner, left
            )
        return True if left <= 0 else None


def _owner_at(path: Path) -> Owner | None:
    with contextlib.suppress(OSError):
        return Owner.parse(path.read_bytes())
    return None


def is_locked(folder: Path) -> bool | None:
    """Whether a living run has the lock of ``folder``; None if that cannot be found out from here."""
    try:
        fd = os.open(folder / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        free, owner = lock_file(fd), Owner.parse(content_of(fd))
        if owner is None or (free and owner.is_of_this_kernel):
            return free is False
        dead = owner.is_dead()
        return None if dead is None else not dead
    finally:
        os.close(fd)


def _close_in_children() -> None:
    """A child of a fork must not keep its parent's locks: a loader's workers outlive a parent that is killed by some
    seconds, in which a new run would be refused."""
    global _registered
    if not _registered and hasattr(os, "register_at_fork"):
        _registered = True
        os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    for lock in list(_held):
        fd, lock._fd, lock._pulse, lock._owner = lock._fd, None, None, None
        if fd is not None:
            os.close(fd)
    _held.clear()
