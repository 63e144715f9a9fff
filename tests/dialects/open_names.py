"""What the documents leave open: models, loaders and constants that their examples speak of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cadenza.testing import tiny_classifier

# Seeds of Orca -------------------------------------------------------------------------------------------------------


class Detector(nn.Module):
    """Computes its losses itself, as Mask-RCNN does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_classifier()

    def forward(self, images: Tensor, targets: Tensor) -> dict[str, Tensor]:
        output = self.inner(images)
        return {"classes": nn.functional.cross_entropy(output, targets), "size": output.pow(2).mean()}


ORCA: dict[str, Any] = {"initial_lr": 0.1, "gamma": 0.5, "step_index": 2, "epoch_size": 3}


# The blog ------------------------------------------------------------------------------------------------------------


def fct(iteration: int) -> float:
    """A learning rate for each iteration."""
    return 0.1 / (1 + iteration)


BLOG: dict[str, Any] = {"nn": nn, "DataParallel": nn.DataParallel, "fct": fct, "torch": torch}
