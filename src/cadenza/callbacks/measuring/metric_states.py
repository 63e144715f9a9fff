"""What a metric has gathered so far, for functions and for objects with ``update``, ``compute`` and ``reset``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from cadenza.foundation.tree import entries, leaves, map_tree, plain
from cadenza.history import as_scalar

Value: TypeAlias = float | Tensor


def is_object(metric: object) -> bool:
    return all(callable(getattr(metric, name, None)) for name in ("update", "compute", "reset"))


def exact(device: torch.device) -> torch.dtype:
    """The type in which sums are kept: counts stay whole numbers, and adding up loses next to nothing."""
    return torch.float32 if device.type == "mps" else torch.float64


class FunctionMean:
    """The mean of a function of output and targets over samples. It is added up where the values are.

    >>> mean = FunctionMean(lambda output, targets: (output - targets).abs())
    >>> mean.add(torch.tensor([1.0, 2.0, 6.0]), torch.zeros(3), 3)
    >>> mean.add(torch.tensor([3.0]), torch.zeros(1), 1)
    >>> mean.result()
    tensor(3., dtype=torch.float64)
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function
        self.total = torch.zeros((), dtype=torch.float64)
        self.weight = 0

    def add(self, output: Any, targets: Any, samples: int) -> None:
        value = self.function(output, targets)
        if not isinstance(value, Tensor) or value.requires_grad:
            value = torch.as_tensor(value).detach()
        count = value.numel()
        if value.is_complex() or (count != 1 and (not value.dim() or value.shape[0] != samples)):
            raise ValueError(
                f"it returned a tensor of shape {tuple(value.shape)} for a batch of {samples} samples; a metric "
                "returns one real value for each sample, or one for the batch"
            )
        if not samples:
            return
        dtype = exact(value.device)
        each = value.sum(dtype=dtype) if count == samples else value.mean(dtype=dtype) * samples
        self.total = self.total + each if self.weight else each
        self.weight += samples

    def result(self) -> Tensor:
        return self.total / self.weight

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total, self.weight = state["total"], int(state["weight"])


class ObjectState:
    """A metric that keeps its own state, from its reset on; ``weight`` counts its updates."""

    total = torch.zeros((), dtype=torch.float64)

    def __init__(self, metric: Any, device: torch.device) -> None:
        self.metric, self.device, self.weight = metric, device, 0
        metric.reset()
        self._move()
        for part in self._parts():
            if callable(getattr(part, "persistent", None)):
                part.persistent(True)  # torchmetrics leaves its states out of state_dict otherwise

    def _parts(self) -> Iterable[Any]:
        return self.metric.modules() if isinstance(self.metric, nn.Module) else (self.metric,)

    def _move(self) -> None:
        if callable(getattr(self.metric, "to", None)):
            self.metric.to(self.device)

    def add(self, output: Any, targets: Any, samples: int) -> None:
        self.metric.update(output, targets)
        self.weight += 1

    def result(self) -> Any:
        return self.metric.compute()

    def state_dict(self) -> dict[str, Any]:
        if not callable(getattr(self.metric, "state_dict", None)):
            return {"weight": 0}
        return {"weight": self.weight, "state": copied(self.metric.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight = int(state["weight"])
        if "state" in state:
            self.metric.load_state_dict(copied(state["state"]))
            self._move()
            for part in self._parts():
                if hasattr(part, "_update_count"):
                    part._update_count = self.weight  # else torchmetrics warns that nothing was measured


def copied(value: Any) -> Any:
    """Tensors that stay as they are when the metric goes on."""
    return map_tree(value, lambda one: one.detach().clone() if isinstance(one, Tensor) else one, rebuild=plain)


def spread(name: str, value: Any) -> dict[str, Value]:
    """One result, or each of those in a dict or a row of numbers, by name.

    >>> spread("f1", {"macro": 0.5, "each": torch.tensor([0.25, 0.75])})
    {'f1/macro': 0.5, 'f1/each/0': tensor(0.2500), 'f1/each/1': tensor(0.7500)}
    """
    named = (("/".join([name, *map(str, path)]), one) for path, one in leaves(value, _numbers))
    return {key: as_scalar(key, one) for key, one in named}


def _numbers(value: Any) -> Iterable[tuple[Any, Any]] | None:
    row = isinstance(value, Tensor) and value.dim() == 1 and value.numel() != 1
    return enumerate(value) if row else entries(value)
