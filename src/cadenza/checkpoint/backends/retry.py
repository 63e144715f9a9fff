"""Trying again, and where a checkpoint goes when its store stays down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from cadenza.checkpoint.backends.spill import Outbox
from cadenza.checkpoint.backends.watchdog import Outage, Silent
from cadenza.checkpoint.format.packing import Packed
from cadenza.checkpoint.multi_process import Joint
from cadenza.checkpoint.problems import Taken
from cadenza.checkpoint.staging import Draft
from cadenza.checkpoint.store import Shelf

log = logging.getLogger("cadenza.checkpoint")
T = TypeVar("T")
_SLOW = 1.0
"""Seconds after which a failed attempt was slow: one that is hurried is not made again."""


class Failure(Exception):
    """A checkpoint could be stored nowhere."""


class Attempts:
    """Writes to a shelf, several times if it is remote; then to the ``outbox`` on this machine.

    A remote store that failed is known to be down: until it answers again, nothing waits for it.
    """

    def __init__(self, shelf: Shelf, retries: int, backoff: float) -> None:
        if type(retries) is not int or retries < 0 or backoff < 0:
            raise ValueError(f"retries is a whole number and backoff seconds, both from 0 on, not {retries}, {backoff}")
        self.shelf = shelf
        self.retries = retries if shelf.store.remote else 0
        self.backoff = backoff
        self.outage = Outage()
        self.outbox: Outbox | None = None
        self._hurried = threading.Event()

    def hurry(self) -> None:
        """The training waits for the save under way: no more pauses, and no further attempt after a slow one."""
        self._hurried.set()

    def write(self, name: str, packed: Packed, meta: dict[str, Any]) -> tuple[str, str | None]:
        """Stores ``packed``; returns the name of its folder, and what is wrong if it is not on the shelf."""
        self._hurried.clear()
        if self.outbox is None:
            return self._stored(name, packed, meta), None
        with self.outbox.lock:
            if self.outage.is_on:
                return self._spilled(self.outbox, name, packed, meta)
        self.shelf.used = max(self.shelf.used, self.outbox.spill.largest_number())  # the newest of both has the largest
        try:
            return self._again(name, lambda: self.shelf.write(name, packed, meta)), None
        except Taken:
            raise
        except Exception as error:
            with self.outbox.lock:
                self.outage.failed(_tell(error))
                return self._spilled(self.outbox, name, packed, meta)

    def _stored(self, name: str, packed: Packed, meta: dict[str, Any]) -> str:
        try:
            return self._again(name, lambda: self.shelf.write(name, packed, meta))
        except Taken:
            raise
        except Exception as error:
            said = f"the checkpoint {name} could not be stored in {self.shelf.store}: {_tell(error)}"
            raise Failure(f"{said}. Those before it are as they were") from error

    def begin(self, name: str) -> Draft:
        """Begins a checkpoint that several processes write. The training waits for it, so it is tried without pauses,
        and while the store is known to be down it is not tried at all."""
        self._hurried.set()
        if self.outage.is_on and not self.outage.is_due:
            raise Failure(f"the checkpoint {name} was left out: {self.shelf.store} is down ({self.outage.reason})")
        try:
            return self._again(name, lambda: self.shelf.draft(name))
        except Taken:
            raise
        except Exception as error:
            self._note_outage(error)
            raise Failure(f"the checkpoint {name} could not be begun in {self.shelf.store}: {_tell(error)}") from error

    def write_together(self, joint: Joint, meta: dict[str, Any]) -> str:
        """Stores the part of this process, and on rank 0 commits the whole; returns the name of the folder. It is not
        spilled: other processes could not reach this machine's disk."""
        name = joint.draft.name
        try:
            files = self._again(name, joint.add)
            if joint.tree is not None:
                folder = joint.commit(self.shelf, meta, lambda commit: self._again(name, commit))
                self.outage.ended()
                return folder
        except Exception as error:
            self._note_outage(error)
            said = f"rank {joint.crew.rank} could not store its part of the checkpoint {name} in {self.shelf.store}"
            if joint.tree is not None:
                self.shelf.abandon(joint.draft, error)
                said = f"the checkpoint {name} could not be stored in {self.shelf.store}"
            else:
                joint.report_failure(f"{said}: {_tell(error)}")
            raise Failure(f"{said}: {_tell(error)}. Those before it are as they were") from error
        joint.report(files)
        return joint.draft.folder

    def _note_outage(self, error: Exception) -> None:
        if self.shelf.store.remote:  # a disk that was full may have room again, and to ask it costs nothing
            self.outage.failed(_tell(error))

    def _again(self, name: str, store: Callable[[], T]) -> T:
        """What ``store`` returns, tried as often as there are attempts. One that was silent is not tried again: that
        took long enough."""
        for attempt in range(self.retries):
            start = time.monotonic()
            try:
                return store()
            except (Silent, Taken):
                raise
            except Exception as error:
                took, seconds = time.monotonic() - start, self.backoff * 2**attempt
                log.info("%s did not take the checkpoint %s (%s); again in %g s", self.shelf, name, error, seconds)
                if self._hurried.wait(seconds) and took > _SLOW:
                    raise
        return store()

    def _spilled(self, outbox: Outbox, name: str, packed: Packed, meta: dict[str, Any]) -> tuple[str, str]:
        said = f"the checkpoint {name} could not be stored in {self.shelf.store}: {self.outage.reason}"
        try:
            folder = outbox.put(name, packed, meta)
        except Exception as error:
            place = outbox.spill.store
            raise Failure(f"{said}; nor in {place}: {_tell(error)}. Those before are as they were") from error
        outbox.start_moving()
        return folder, f"{said}. It is in {outbox.spill.store}/{folder}, and will be moved when the store is back"


def _tell(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
