"""The names that SuperGradients' document leaves open: images to save, a model and loaders."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn


def save_image(tensor: Tensor, path: str) -> None:
    """What ``torchvision.utils.save_image`` does: the images of a batch side by side in one file, by Pillow."""
    pixels = tensor.detach().float().clamp(0, 1).mul(255).round().to(torch.uint8)
    grid = torch.cat(list(pixels.expand(-1, 3, -1, -1)), dim=2)
    Image.fromarray(grid.permute(1, 2, 0).numpy()).save(path)


def modules() -> dict[str, ModuleType]:
    """``torchvision.utils``, which is not installed, as far as the document needs it."""
    torchvision, vision_utils = (ModuleType(name) for name in ("torchvision", "torchvision.utils"))
    vision_utils.save_image = save_image  # type: ignore[attr-defined]
    torchvision.utils = vision_utils  # type: ignore[attr-defined]
    return {"torchvision": torchvision, "torchvision.utils": vision_utils}


class TinyNet(nn.Module):
    """Three classes of images of 4 by 4 pixels."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.layers(images)
        return found


def image_loader(dataset_params: Any = None, dataloader_params: Any = None) -> Any:
    """24 images in batches of 8."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.arange(24) % 3
    images = torch.rand(24, 3, 4, 4, generator=generator) * 0.3 + targets.reshape(-1, 1, 1, 1) * 0.3
    data = torch.utils.data.TensorDataset(images, targets)
    return torch.utils.data.DataLoader(data, **{"batch_size": 8, **(dataloader_params or {})})


if __name__ == "supergradients_names":  # imported by the script of the document, in a process of its own
    sys.modules.update(modules())
