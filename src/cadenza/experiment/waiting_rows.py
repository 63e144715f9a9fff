"""Rows that wait to be written together, and their numbers, which are copied from the device while it works."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Any

import torch
from torch import Tensor

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


class HostCopies:
    """Numbers and tensors of one element as numbers. Those on a CUDA device are copied without waiting for it.

    >>> copies = HostCopies([1.5, torch.tensor(2)])
    >>> copies.arrived, copies.numbers()
    (True, [1.5, 2.0])
    """

    def __init__(self, values: Iterable[float | Tensor]) -> None:
        self._values = list(values)
        self._copies: list[tuple[list[int], Tensor]] = []
        self._events: list[torch.cuda.Event] = []
        places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for place, value in enumerate(self._values):
            if isinstance(value, Tensor):
                places.setdefault((value.device, value.dtype), []).append(place)
        for (device, _), there in places.items():
            together = torch.stack([value for place in there if isinstance(value := self._values[place], Tensor)])
            self._copies.append((there, self._on_its_way(together) if device.type == "cuda" else together))

    def _on_its_way(self, values: Tensor) -> Tensor:
        """``values`` in pinned memory, where they are once the event has happened: other memory would be waited for."""
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(values.device))
        self._events.append(event)
        return copy

    @property
    def arrived(self) -> bool:
        """Whether ``numbers`` returns without waiting for the device."""
        return all(event.query() for event in self._events)  # type: ignore[no-untyped-call]

    def numbers(self) -> list[float]:
        """The numbers in their order. What has not arrived is waited for."""
        for event in self._events:
            event.synchronize()
        found: list[Any] = self._values
        for there, copy in self._copies:
            for place, number in zip(there, copy.tolist(), strict=True):
                found[place] = number
        return [float(number) for number in found]
