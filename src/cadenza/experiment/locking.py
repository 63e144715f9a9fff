"""One run at a time in one folder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

log = logging.getLogger("cadenza")
NAME = ".lock"
_PATIENCE = 2.0
"""So many seconds a run waits: somebody who asks whether a run is alive holds the lock for an instant."""


class FolderLocked(RuntimeError):
    """Another run is writing into this folder."""


class FolderLock:
    """A lock that the operating system lets go when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(str(folder / NAME), thread_local=False)

    def acquire(self) -> Self:
        """Takes the lock; raises ``FolderLocked`` if another run has it."""
        try:
            self._lock.acquire(timeout=_PATIENCE, poll_interval=0.05)
        except Timeout:
            raise FolderLocked(
                f"another run is writing into {self.folder}; wait until it ended, or train into a folder of its own: "
                "Experiment(project, name) makes one"
            ) from None
        except NotImplementedError:  # a file system without locks
            log.warning("%s cannot be locked: take care that no second run writes into it", self.folder)
        return self

    def release(self) -> None:
        self._lock.release(force=True)


def is_locked(folder: Path) -> bool | None:
    """Whether a living process holds the lock of ``folder``; None if that cannot be found out."""
    if not (folder / NAME).exists():
        return False
    lock = FileLock(str(folder / NAME), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        return None
    lock.release(force=True)
    return False
