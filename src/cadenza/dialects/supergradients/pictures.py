"""Callbacks that show images with what a model says of them."""

from __future__ import annotations

from collections.abc import Callable as Function
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cadenza.callbacks.showing.predictions import Boxes, decode_boxes
from cadenza.dialects.supergradients.callback import PhaseCallback, PhaseContext
from cadenza.dialects.supergradients.environment import multi_process_safe
from cadenza.dialects.supergradients.phases import Phase
from cadenza.dialects.supergradients.registry import register_callback

__all__ = ["BinarySegmentationVisualizationCallback", "DetectionVisualizationCallback"]


class BatchPicture(PhaseCallback):
    """Logs the images of one batch every ``freq`` epochs. ``last_img_idx_in_batch`` is where it ends; -1 is all."""

    def __init__(self, phase: Phase | str, freq: int, batch_idx: int = 0, last_img_idx_in_batch: int = -1) -> None:
        super().__init__(phase)
        if freq < 1:
            raise ValueError(f"freq is a number of epochs of at least 1, not {freq!r}")
        self.freq, self.batch_idx, self.last_img_idx_in_batch = freq, batch_idx, last_img_idx_in_batch

    @multi_process_safe
    def __call__(self, context: PhaseContext) -> None:
        if (context.epoch or 0) % self.freq or context.batch_idx != self.batch_idx:
            return
        images = self.images(context)
        if self.last_img_idx_in_batch >= 0:
            images = images[: self.last_img_idx_in_batch]
        shown = images.permute(0, 2, 3, 1).numpy()
        context.sg_logger.add_images(
            tag=f"batch_{self.batch_idx}_images", images=shown, global_step=context.epoch, data_format="NHWC"
        )

    def images(self, context: PhaseContext) -> Tensor:
        """The images with what is drawn on them, (N, C, H, W) from 0 to 1."""
        raise NotImplementedError


@register_callback()
class DetectionVisualizationCallback(BatchPicture):
    """Draws found boxes in red and true ones in green. ``post_prediction_callback(preds)`` gives for each image rows of
    left, top, right, bottom, score and class; targets are rows of image, class, centre x, centre y, width and height in
    pixels."""

    def __init__(
        self,
        phase: Phase | str,
        freq: int,
        post_prediction_callback: Function[..., Any] | None = None,
        classes: Sequence[str] | None = None,
        *which: int,
        **more: int,
    ) -> None:
        super().__init__(phase, freq, *which, **more)
        self.post_prediction_callback, self.classes = post_prediction_callback, classes

    def images(self, context: PhaseContext) -> Tensor:
        preds = context.preds
        if self.post_prediction_callback is not None:
            preds = self.post_prediction_callback(preds)
        return with_boxes(context.inputs.detach().cpu(), decode_boxes(preds), context.target)


def with_boxes(images: Tensor, found: Sequence[Boxes], targets: Tensor, size: Tensor | None = None) -> Tensor:
    """The images with found boxes in red and true ones, whose sides are times ``size``, in green."""
    shown = brightened(images)
    for image, some, true in zip(shown, found, true_rows(targets, len(shown)), strict=True):
        outline(image, some, 0, torch.ones(4))
        outline(image, true, 1, torch.ones(4) if size is None else size)
    return shown


def brightened(images: Tensor) -> Tensor:
    """The images as numbers from 0 to 1."""
    images = images.float()
    low, high = images.amin(), images.amax()
    return ((images - low) / (high - low).clamp(min=1e-6)).clone()


def outline(image: Tensor, boxes: Boxes, channel: int, size: Tensor) -> None:
    """Draws the edges of boxes into one colour of an image, in place."""
    height, width = image.shape[-2:]
    for box in boxes.boxes.float() * size:
        left, right = (int(min(max(float(side), 0), width - 1)) for side in (box[0], box[2]))
        top, bottom = (int(min(max(float(side), 0), height - 1)) for side in (box[1], box[3]))
        image[:, [top, bottom], left : right + 1] = 0.0
        image[:, top : bottom + 1, [left, right]] = 0.0
        image[channel, [top, bottom], left : right + 1] = 1.0
        image[channel, top : bottom + 1, [left, right]] = 1.0


def tinted(images: Tensor, mask: Tensor, channel: int = 0) -> Tensor:
    """The images with one colour of the pixels of a mask made brighter."""
    shown = brightened(images)
    shown[:, channel] = shown[:, channel].where(~mask, 0.5 + 0.5 * shown[:, channel])
    return shown


def true_rows(targets: Tensor, count: int) -> list[Boxes]:
    """Rows of image, class, centre x, centre y, width and height as boxes, image by image."""
    targets = targets.detach().cpu()
    made = []
    for number in range(count):
        rows = targets[targets[:, 0] == number]
        half = rows[:, 4:6] / 2
        made.append(Boxes(torch.cat([rows[:, 2:4] - half, rows[:, 2:4] + half], 1), rows[:, 1].long()))
    return made


@register_callback()
class BinarySegmentationVisualizationCallback(BatchPicture):
    """Draws the predicted mask in red and the true one in green over each image; a pixel counts where its score is
    above 0."""

    def images(self, context: PhaseContext) -> Tensor:
        preds = context.preds[0] if isinstance(context.preds, list | tuple) else context.preds
        images: Tensor = context.inputs.detach().cpu()
        for part, channel in ((preds, 0), (context.target, 1)):
            images = tinted(images, part.detach().cpu().reshape(len(images), *images.shape[-2:]) > 0, channel)
        return images
