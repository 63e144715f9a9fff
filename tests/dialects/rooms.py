"""Models, loaders and trainers that the tests of the dialects share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cadenza import Trainer
from cadenza.testing import tiny_classifier


def trainer_with(*callbacks: Any, model: nn.Module | None = None, lr: float = 0.1, **options: Any) -> Trainer:
    model = tiny_classifier() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu", **options)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
