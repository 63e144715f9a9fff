"""Putting the predictions of many batches together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cadenza.data import gather, to_device


def append_predictions(y_batch: Any, predictions: list[Any]) -> list[Any]:
    """Adds what one batch gave to a list of what all gave."""
    predictions.append(y_batch)
    return predictions


def torch_cat_transf(predictions: list[Any]) -> Any:
    """Makes one tensor of the list; what cannot be joined stays a list."""
    return gather(predictions)


class Collected:
    """Predictions, targets and further data of the batches so far."""

    def __init__(self, collate: Callable[[Any, list[Any]], list[Any]], transform: Callable[[list[Any]], Any]) -> None:
        self.collate, self.transform = collate, transform
        self.predictions: list[Any] = []
        self.targets: list[Any] = []
        self.metadata: dict[str, list[Any]] = {}

    def add(self, predictions: Any, targets: Any, metadata: Mapping[str, Any] | None) -> None:
        self.predictions = self.collate(_on_cpu(predictions), self.predictions)
        self.targets = self.collate(_on_cpu(targets), self.targets)
        for name, values in (metadata or {}).items():
            self.metadata.setdefault(name, []).extend(values)

    def whole(self) -> tuple[Any, Any, dict[str, Any]]:
        return self.transform(self.predictions), self.transform(self.targets), self.metadata


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    return to_device(value, torch.device("cpu")) if isinstance(value, list | tuple | dict) else value
