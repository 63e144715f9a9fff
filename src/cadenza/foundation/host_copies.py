"""Numbers that are copied from a device while it works, so that whoever writes them down need not wait for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


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
