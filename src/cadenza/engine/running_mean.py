"""The mean of the losses of a pass, and the values over it of what is logged in its iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from cadenza.engine.state import OnPage
from cadenza.history import read

WAYS = ("mean", "last", "sum", "max", "min")
"""How the values of the iterations become one value over the pass."""
_FOLDS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "sum": (torch.sum, torch.add),
    "max": (torch.amax, torch.maximum),
    "min": (torch.amin, torch.minimum),
}
_FOLD = 512
_HOST = torch.device("cpu")


class Mean:
    """The mean of the losses of a pass, weighted by samples, without waiting for the device."""

    __slots__ = ("losses", "total", "weight", "weights")

    def __init__(self) -> None:
        self.losses: list[Any] = []
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
        exact = exact_on(losses.device)
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


class Folded(Mean):
    """The values of one name, one from each iteration that logged it, on their way to one value over the pass."""

    __slots__ = ("how",)

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def add(self, loss: Any, samples: int) -> None:
        if self.how == "last":
            self.losses, self.weights = [loss], [samples]
            return
        self.losses.append(loss)
        self.weights.append(samples)
        if len(self.weights) >= _FOLD:
            self.fold()

    def fold(self) -> None:
        if self.how == "mean":
            super().fold()
            return
        of_all, of_two = _FOLDS[self.how]
        total = of_all(self.stacked())
        self.total = total if self.total is None else of_two(self.total, total)
        self.losses.clear()
        self.weights.clear()

    def stacked(self) -> Tensor:
        """The values as one tensor, converted before they are summed: so the sum does not depend on whether a resumed
        run has read some of them back. Numbers stay on the host unless there are tensors of a device among them."""
        values = self.losses
        tensors = [value for value in values if isinstance(value, Tensor)]
        if not tensors:
            return torch.tensor(values, dtype=torch.float64)
        if len(tensors) == len(values):
            try:
                together = torch.stack(tensors)
                return together.to(exact_on(together.device))
            except RuntimeError:  # they are on several devices
                pass
        device = next((value.device for value in tensors if value.device.type != "cpu"), _HOST)
        exact = exact_on(device)
        return torch.stack([torch.as_tensor(value, dtype=exact).to(device, non_blocking=True) for value in values])

    def value(self) -> Any:
        if self.how == "last":
            return self.losses[0]
        if self.how == "mean":
            return super().value()
        if self.losses:
            self.fold()
        return self.total

    def state_dict(self) -> dict[str, Any]:
        values = self.stacked() if self.losses else torch.empty(0)
        on_host = [tensor is None or tensor.device.type == "cpu" for tensor in (values, self.total)]
        state = {"losses": values, "weights": list(self.weights), "total": self.total, "weight": self.weight}
        return {"over": self.how, "on_host": on_host, **state}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """What was on the host stays there, so that the sums are made where they would have been made."""
        super().load_state_dict(state, device)
        values_on_host, total_on_host = state["on_host"]
        if values_on_host:
            self.losses = list(state["losses"])
        if total_on_host:
            self.total = state["total"]


class Logged:
    """What is logged in the iterations of a pass: the last value of each name in each of them, once."""

    __slots__ = ("_folded", "_waiting", "over")

    def __init__(self) -> None:
        self.over: dict[str, str] = {}
        """For each name that was logged how its values become one."""
        self._waiting: list[tuple[dict[str, Any], int]] = []
        self._folded: dict[str, Folded] = {}

    def add(self, values: Mapping[str, Any], samples: int) -> None:
        """The values of one iteration. They are only kept here, since this is called in each iteration that logs."""
        self._waiting.append((dict(values), samples))
        if len(self._waiting) >= _FOLD:
            self._hand_out()

    def _hand_out(self) -> None:
        waiting, self._waiting = self._waiting, []
        for values, samples in waiting:
            for name, value in values.items():
                folded = self._folded.get(name)
                if folded is None:
                    folded = self._folded[name] = Folded(self.over.get(name, "mean"))
                folded.add(value, samples)

    def values(self) -> dict[str, Any]:
        """The value over the pass of each name; tensors stay where they are."""
        self._hand_out()
        found = {name: folded.value() for name, folded in self._folded.items()}
        return {name: value for name, value in found.items() if value is not None}

    def parts(self) -> dict[str, tuple[str, float, int]]:
        """What other processes need of each name: how its values become one, their sum or value, and its weight. This
        waits for the device."""
        found = {name: self._folded[name] for name in self.values()}
        numbers = read(one.total if one.total is not None else one.losses[0] for one in found.values())
        return {name: (one.how, number, one.weight) for (name, one), number in zip(found.items(), numbers, strict=True)}

    def state_dict(self) -> list[dict[str, Any]]:
        """Where each name stands. Nothing is folded for it, since that would change the order of the sums."""
        self._hand_out()
        return [{"name": name, **folded.state_dict()} for name, folded in self._folded.items()]

    def load_state_dict(self, state: Iterable[dict[str, Any]], device: torch.device) -> None:
        for one in state:
            folded = self._folded[one["name"]] = Folded(one["over"])
            folded.load_state_dict(one, device)
            self.over[one["name"]] = one["over"]


def exact_on(device: torch.device) -> torch.dtype:
    """The most exact type in which sums can be made on ``device``."""
    return torch.float32 if device.type == "mps" else torch.float64
