"""Orca's metrics: each has ``update(output, target)``, ``compute()`` and ``reset()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "MAE",
    "MSE",
    "Accuracy",
    "BinaryAccuracy",
    "CategoricalAccuracy",
    "SparseCategoricalAccuracy",
    "Top5Accuracy",
    "named",
]


class _Mean:
    """The mean over all samples of what ``measure`` gives for each."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total: Any = 0.0
        self.count = 0

    def update(self, output: Tensor, target: Tensor) -> None:
        values = self.measure(output, target).double()
        self.total = self.total + values.sum()
        self.count += values.numel()

    def compute(self) -> Tensor:
        return torch.as_tensor(self.total) / self.count

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError


class SparseCategoricalAccuracy(_Mean):
    """Targets are numbers of classes."""

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        return output.argmax(dim=-1) == target.reshape(output.shape[:-1])


class CategoricalAccuracy(_Mean):
    """Targets are one-hot rows."""

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        return output.argmax(dim=-1) == target.argmax(dim=-1)


class BinaryAccuracy(_Mean):
    """Outputs are probabilities."""

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.reshape(target.shape) > self.threshold) == (target > 0.5)


class Accuracy(_Mean):
    """Whichever of the above fits the shapes.

    >>> metric = Accuracy()
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    >>> float(metric.compute())
    0.5
    """

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        if output.dim() < 2 or output.shape[-1] == 1:
            return BinaryAccuracy.measure(BinaryAccuracy(), output, target)
        kind = CategoricalAccuracy if output.shape == target.shape else SparseCategoricalAccuracy
        return kind().measure(output, target)


class Top5Accuracy(_Mean):
    """Whether the class is among the five likeliest."""

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        likeliest = output.topk(min(5, output.shape[-1]), dim=-1).indices
        return (likeliest == target.reshape(-1, 1)).any(dim=-1)


class MSE(_Mean):
    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target.reshape(output.shape)) ** 2


class MAE(_Mean):
    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target.reshape(output.shape)).abs()


def named(metrics: Any) -> dict[str, Callable[..., Any] | Any]:
    """Metrics by the names that the statistics show: those of their classes or functions, in lower case."""
    listed = [] if metrics is None else list(metrics) if isinstance(metrics, list | tuple) else [metrics]
    return {getattr(one, "__name__", type(one).__name__).lower(): one for one in listed}
