"""The names that AIToolbox's document leaves open: the model, the loaders, and what it imports silently."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn, optim

from cadenza.dialects.aitoolbox import TTModel


class CNNModel(TTModel):
    """A small image classifier in the manner of the document: log-probabilities for ``nn.NLLLoss``."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))

    def forward(self, images: Tensor) -> Tensor:
        return torch.log_softmax(self.layers(images), 1)

    def get_loss(self, batch_data: Any, criterion: Any, device: torch.device) -> Any:
        images, targets = batch_data
        return criterion(self(images.to(device)), targets.to(device))

    def get_predictions(self, batch_data: Any, device: torch.device) -> tuple[Tensor, Tensor, dict[str, Any]]:
        images, targets = batch_data
        return self(images.to(device)).argmax(1), targets, {}


def DataLoader(dataset: Any, batch_size: int = 8) -> Any:
    """Torch's loader; the document's ``DataLoader(...)`` gives 24 images of three classes."""
    if dataset is ...:
        generator = torch.Generator().manual_seed(1)
        targets = torch.arange(24) % 3
        images = torch.randn(24, 1, 4, 4, generator=generator) + targets.reshape(-1, 1, 1, 1)
        dataset = torch.utils.data.TensorDataset(images, targets)
    return torch.utils.data.DataLoader(dataset, batch_size=batch_size)


NAMES = {"CNNModel": CNNModel, "DataLoader": DataLoader, "optim": optim, "nn": nn}
