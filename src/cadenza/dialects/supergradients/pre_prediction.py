"""What may change a batch before the model sees it: the slot ``pre_prediction_callback``."""

from __future__ import annotations

import random
from collections.abc import Callable as Function
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.callback import Callback, Order
from cadenza.dialects.supergradients.registry import register_callback

if TYPE_CHECKING:
    from cadenza.run import Run

__all__ = ["DetectionMultiscalePrePredictionCallback", "MultiscalePrePredictionCallback"]


class PrePrediction(Callback):
    """Calls ``function(inputs, targets, batch_idx)`` on each training batch, before anybody looks at it."""

    order = Order.PREPARE - 2000

    def __init__(self, function: Function[[Any, Any, int], tuple[Any, Any]]) -> None:
        self.function = function

    def before_train_iter(self, run: Run) -> None:
        batch = run.batch
        inputs, targets = self.function(batch[0], batch[1], run.batch_idx)
        run.batch = type(batch)([inputs, targets, *batch[2:]])


@register_callback()
class MultiscalePrePredictionCallback:
    """Resizes the images of each batch to another size every ``change_frequency`` batches: up to ``multiscale_range``
    steps of ``image_size_steps`` pixels smaller or larger. The draws come from a generator of its own, which all
    processes begin alike."""

    def __init__(self, multiscale_range: int = 5, image_size_steps: int = 32, change_frequency: int = 10) -> None:
        self.multiscale_range, self.image_size_steps = multiscale_range, image_size_steps
        self.change_frequency = change_frequency
        self.draws = random.Random(0)
        self.steps = 0

    def __call__(self, inputs: Tensor, targets: Any, batch_idx: int) -> tuple[Tensor, Any]:
        if batch_idx % self.change_frequency == 0:
            self.steps = self.draws.randint(-self.multiscale_range, self.multiscale_range)
        height, width = (max(side + self.steps * self.image_size_steps, 1) for side in inputs.shape[-2:])
        resized = torch.nn.functional.interpolate(inputs, size=(height, width), mode="bilinear", align_corners=False)
        return resized, self.scaled(targets, width / inputs.shape[-1], height / inputs.shape[-2])

    def scaled(self, targets: Any, wider: float, higher: float) -> Any:
        """The targets that belong to the resized images."""
        return targets


@register_callback()
class DetectionMultiscalePrePredictionCallback(MultiscalePrePredictionCallback):
    """Resizes the boxes, too: rows of image, class, centre x, centre y, width and height."""

    def scaled(self, targets: Tensor, wider: float, higher: float) -> Tensor:
        factors = torch.tensor([1.0, 1.0, wider, higher, wider, higher], device=targets.device)
        return targets * factors
