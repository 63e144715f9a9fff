"""Metrics by name: objects with ``update(preds, target)``, ``compute()`` and ``reset()``, as torchmetrics has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cadenza.callbacks.measures import accuracy, top_k_accuracy
from cadenza.dialects.supergradients.building import build
from cadenza.dialects.supergradients.registry import register_metric

__all__ = ["Accuracy", "Top5"]


class MeanMetric:
    """The mean over samples of ``measure(preds, target)``."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total, self.count = torch.zeros(()), 0

    def measure(self, preds: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def update(self, preds: Any, target: Tensor, **_: Any) -> None:
        preds = preds[0] if isinstance(preds, list | tuple) else preds
        values = self.measure(preds, target).detach().float()
        self.total = self.total.to(values.device) + values.mean() * len(target)
        self.count += len(target)

    def compute(self) -> Tensor:
        return self.total / max(self.count, 1)


@register_metric("Accuracy")
class Accuracy(MeanMetric):
    """The share of samples whose class is right.

    >>> metric = Accuracy()
    >>> metric.update(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    >>> metric.compute()
    tensor(0.5000)
    """

    def measure(self, preds: Tensor, target: Tensor) -> Tensor:
        return accuracy(preds, target)


@register_metric("Top5")
class Top5(MeanMetric):
    """The share of samples whose class is among the five highest scores."""

    def measure(self, preds: Tensor, target: Tensor) -> Tensor:
        return top_k_accuracy(preds, target, k=min(5, preds.shape[1]))


def metrics_by_name(wanted: Sequence[Any]) -> dict[str, Any]:
    """Metrics from objects, names or ``{name: arguments}``, each under the name of its class."""
    found: dict[str, Any] = {}
    for one in wanted or ():
        metric = build("metric", one)
        name = getattr(metric, "name", None) or type(metric).__name__
        if name in found:
            raise ValueError(f"supergradients: two metrics are called {name!r}")
        found[str(name)] = metric
    return found
