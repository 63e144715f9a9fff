"""Trying again, and where a checkpoint goes when its store stays down."""

from __future__ import annotations

import logging
import threading
from typing import Any

from cadenza.checkpoint.packing import Packed
from cadenza.checkpoint.shelf import Shelf

log = logging.getLogger("cadenza.checkpoint")


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
        for attempt in range(self.retries + 1):
            try:
                return self.shelf.write(name, packed, meta), None
            except Exception as failure:
                error = failure
            if attempt < self.retries:
                seconds = self.backoff * 2**attempt
                log.info("%s did not take the checkpoint %s (%s); again in %g s", self.shelf, name, error, seconds)
                self._pause.wait(seconds)
        return self._spilled(name, packed, meta, error)

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
