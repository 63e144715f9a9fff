"""Trying again, and where a checkpoint goes when its store stays down."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from cadenza.checkpoint.draft import Draft
from cadenza.checkpoint.joint import Joint
from cadenza.checkpoint.packing import Packed
from cadenza.checkpoint.shelf import Shelf

log = logging.getLogger("cadenza.checkpoint")
T = TypeVar("T")


class Failure(Exception):
    """A checkpoint could be stored nowhere."""


class Attempts:
    """Writes to a shelf, again and again if it is remote; then to ``spill``, a shelf on this machine."""

    def __init__(self, shelf: Shelf, spill: Shelf | None, retries: int, backoff: float) -> None:
        if type(retries) is not int or retries < 0 or backoff < 0:
            raise ValueError(f"retries is a whole number and backoff seconds, both from 0 on, not {retries}, {backoff}")
        self.shelf, self.spill = shelf, spill
        self.retries = retries if shelf.store.remote else 0
        self.backoff = backoff
        self._pause = threading.Event()

    def write(self, name: str, packed: Packed, meta: dict[str, Any]) -> tuple[str, str | None]:
        """Stores ``packed``; returns the name of its folder, and what is wrong if it is not on the shelf."""
        if self.spill is not None:  # so that the newest of both has the largest number, also after a restart
            self.shelf.used = max(self.shelf.used, self.spill.largest_number())
        try:
            return self._again(name, lambda: self.shelf.write(name, packed, meta)), None
        except Exception as error:
            return self._spilled(name, packed, meta, error)

    def begin(self, name: str) -> Draft:
        """Begins a checkpoint that several processes write."""
        try:
            return self._again(name, lambda: self.shelf.draft(name))
        except Exception as error:
            raise Failure(f"the checkpoint {name} could not be begun in {self.shelf.store}: {_tell(error)}") from error

    def write_together(self, joint: Joint, meta: dict[str, Any]) -> str:
        """Stores the part of this process, and on rank 0 commits the whole; returns the name of the folder. It is not
        spilled: other processes could not reach this machine's disk."""
        name = joint.draft.name
        try:
            files = self._again(name, joint.add)
            if joint.tree is not None:
                return joint.commit(self.shelf, meta, lambda commit: self._again(name, commit))
        except Exception as error:
            said = f"rank {joint.crew.rank} could not store its part of the checkpoint {name} in {self.shelf.store}"
            if joint.tree is not None:
                self.shelf.abandon(joint.draft)
                said = f"the checkpoint {name} could not be stored in {self.shelf.store}"
            else:
                joint.report_failure(f"{said}: {_tell(error)}")
            raise Failure(f"{said}: {_tell(error)}. Those before it are as they were") from error
        joint.report(files)
        return joint.draft.folder

    def _again(self, name: str, store: Callable[[], T]) -> T:
        """What ``store`` returns, tried as often as there are attempts."""
        for attempt in range(self.retries):
            try:
                return store()
            except Exception as error:
                seconds = self.backoff * 2**attempt
                log.info("%s did not take the checkpoint %s (%s); again in %g s", self.shelf, name, error, seconds)
                self._pause.wait(seconds)
        return store()

    def _spilled(self, name: str, packed: Packed, meta: dict[str, Any], error: Exception) -> tuple[str, str]:
        said = f"the checkpoint {name} could not be stored in {self.shelf.store}: {_tell(error)}"
        if self.spill is None:
            raise Failure(f"{said}. Those before it are as they were") from error
        try:
            self.spill.used = max(self.spill.used, self.shelf.used)
            folder = self.spill.write(name, packed, meta)
            self.spill.retain(keep_last=1)
        except Exception as second:
            raise Failure(
                f"{said}; nor in {self.spill.store}: {_tell(second)}. Those before are as they were"
            ) from error
        return folder, f"{said}. It is in {self.spill.store}/{folder}"


def _tell(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
