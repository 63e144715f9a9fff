"""Rows that wait to be written together."""

from __future__ import annotations

from time import monotonic
from typing import Any

from cadenza.foundation.host_copies import HostCopies
from cadenza.history import Row

AT_MOST = 100
"""So many rows of iterations wait to be read from the device and written together,"""
SECONDS = 5.0
"""and not longer than this, whichever comes first."""


class WaitingRows:
    """Rows that wait to be written together, each with a note. Before a row of an epoch, nothing waits for the device:
    the values of a few rows are copied at a time, and handed out when they have arrived."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, Any]] = []
        self._coming: tuple[list[tuple[Any, Any]], HostCopies] | None = None
        self._begun = monotonic()

    def __len__(self) -> int:
        return len(self._rows) + (len(self._coming[0]) if self._coming is not None else 0)

    def add(self, row: Row, note: Any = None) -> None:
        self._rows.append((row, note))

    def arrived(self) -> list[tuple[Any, Any, list[float]]]:
        """The rows that can be written now, with their notes and their numbers. Waits only for that of an epoch."""
        if self._rows and self._rows[-1][0].kind == "epoch":
            return self.every()
        if self._coming is None and (len(self._rows) >= AT_MOST or monotonic() - self._begun > SECONDS):
            self._begin()
        return self._taken() if self._coming is not None and self._coming[1].arrived else []

    def every(self) -> list[tuple[Any, Any, list[float]]]:
        """All rows. This waits for the device, once for all of them."""
        found = self._taken()
        self._begin()
        return found + self._taken()

    def _begin(self) -> None:
        rows, self._rows, self._begun = self._rows, [], monotonic()
        self._coming = rows, HostCopies(value for row, _ in rows for value in row.raw().values())

    def _taken(self) -> list[tuple[Any, Any, list[float]]]:
        if self._coming is None:
            return []
        (rows, copies), self._coming = self._coming, None
        numbers = iter(copies.numbers())
        return [(row, note, [next(numbers) for _ in row.raw()]) for row, note in rows]
