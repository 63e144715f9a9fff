"""The mean of losses over a pass, computed when somebody reads it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FOLD_AFTER = 256


class AverageMeter:
    """Means over samples. Values stay on their device until they are read.

    >>> meter = AverageMeter()
    >>> meter.update(torch.tensor([1.0, 4.0]), 1)
    >>> meter.update(torch.tensor([3.0, 0.0]), 3)
    >>> meter.average
    (2.5, 1.0)
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Any, int]] = []
        self._sum: Tensor | None = None
        self._count = 0
        self._plain = False

    def update(self, value: Any, batch_size: int) -> None:
        """Adds the losses of one batch of so many samples."""
        self._plain = getattr(value, "ndim", int(isinstance(value, list | tuple))) == 0
        self._waiting.append((value, batch_size))
        if len(self._waiting) >= _FOLD_AFTER:
            self._fold()

    def _fold(self) -> None:
        if not self._waiting:
            return
        values = torch.stack([_row(value) for value, _ in self._waiting]).double()
        weights = torch.tensor([count for _, count in self._waiting], dtype=values.dtype, device=values.device)
        total = (values * weights.unsqueeze(1)).sum(0)
        self._sum = total if self._sum is None else self._sum + total
        self._count += sum(count for _, count in self._waiting)
        self._waiting = []

    @property
    def average(self) -> Any:
        """The mean: a number of numbers, a tuple of rows, and 0 of nothing."""
        self._fold()
        if self._sum is None:
            return 0
        numbers = (self._sum / self._count).tolist()
        return numbers[0] if self._plain else tuple(numbers)

    def state_dict(self) -> dict[str, Any]:
        self._fold()
        return {"sum": self._sum, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._waiting, self._sum, self._count = [], state["sum"], int(state["count"])


def _row(value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.dim() == 1:
        return value  # by far the most common
    return torch.as_tensor(value).detach().reshape(-1)
