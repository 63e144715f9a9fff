"""The mean of a pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cadenza.engine.fields import OnPage

_FOLD = 512


class Mean:
    """The mean of the losses of a pass, weighted by samples, without waiting for the device."""

    __slots__ = ("losses", "total", "weight", "weights")

    def __init__(self) -> None:
        self.losses: list[Tensor | OnPage] = []
        self.weights: list[int] = []
        self.total: Tensor | None = None
        self.weight = 0

    def add(self, loss: Any, samples: int) -> None:
        try:
            self.losses.append(loss if type(loss) is OnPage else loss.detach())
        except AttributeError:
            self.losses.append(torch.tensor(loss, dtype=torch.float64))
        weights = self.weights
        weights.append(samples)
        if len(weights) >= _FOLD:
            self.fold()

    def fold(self) -> None:
        losses = self.stacked()
        exact = torch.float32 if losses.device.type == "mps" else torch.float64
        first = self.weights[0]
        if self.weights.count(first) == len(self.weights):  # nearly always, and it needs no tensor of weights
            total = losses.sum(dtype=exact) * first
        else:
            weights = torch.tensor(self.weights, dtype=exact)
            if losses.device.type != "cpu":
                weights = weights.to(losses.device, non_blocking=True)
            total = (losses.to(exact) * weights).sum()
        self.total = total if self.total is None else self.total + total
        self.weight += sum(self.weights)
        self.losses.clear()
        self.weights.clear()

    def stacked(self) -> Tensor:
        losses = self._tensors()
        try:
            together = torch.stack(losses)
            if together.dim() == 1:
                return together
        except RuntimeError:  # they differ in shape
            pass
        if any(loss.numel() != 1 for loss in losses):
            raise ValueError("run.loss must be one number; give the criterion a reduction such as 'mean'")
        return torch.stack([loss.reshape(()).double() for loss in losses])

    def _tensors(self) -> list[Tensor]:
        return [loss.look() if isinstance(loss, OnPage) else loss for loss in self.losses]

    def value(self) -> Tensor | None:
        if self.losses:
            self.fold()
        return None if self.total is None or not self.weight else self.total / self.weight

    def state_dict(self) -> dict[str, Any]:
        """Where the mean stands. Nothing is folded for it, since that would change the order of the sum."""
        losses = self._tensors()
        alike = len({(loss.dtype, loss.shape, loss.device) for loss in losses}) == 1
        saved: Any = torch.stack(losses) if alike else [loss.clone() for loss in losses]
        return {"losses": saved, "weights": list(self.weights), "total": self.total, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.losses = [loss.to(device) for loss in state["losses"]]
        self.weights, self.weight = list(state["weights"]), state["weight"]
        self.total = None if state["total"] is None else state["total"].to(device)
