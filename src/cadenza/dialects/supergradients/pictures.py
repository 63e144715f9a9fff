"""Callbacks that show images with what a model says of them."""

from __future__ import annotations

from collections.abc import Callable as Function
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cadenza.callbacks.decoding import Boxes, Mask, decode_boxes
from cadenza.callbacks.image_grid import Look, Sample, draw_samples
from cadenza.dialects.supergradients.callback import PhaseCallback, PhaseContext
from cadenza.dialects.supergradients.environment import multi_process_safe
from cadenza.dialects.supergradients.phases import Phase
from cadenza.dialects.supergradients.registry import register_callback

__all__ = ["BinarySegmentationVisualizationCallback", "DetectionVisualizationCallback"]


class BatchPicture(PhaseCallback):
    """Draws one batch every ``freq`` epochs into the logger. ``last_img_idx_in_batch`` is where it ends; -1 is all."""

    title = "images"

    def __init__(self, phase: Phase | str, freq: int, batch_idx: int = 0, last_img_idx_in_batch: int = -1) -> None:
        super().__init__(phase)
        if freq < 1:
            raise ValueError(f"freq is a number of epochs of at least 1, not {freq!r}")
        self.freq, self.batch_idx, self.last_img_idx_in_batch = freq, batch_idx, last_img_idx_in_batch

    @multi_process_safe
    def __call__(self, context: PhaseContext) -> None:
        if (context.epoch or 0) % self.freq or context.batch_idx != self.batch_idx:
            return
        samples = self.samples(context)
        if self.last_img_idx_in_batch >= 0:
            samples = samples[: self.last_img_idx_in_batch]
        figure = draw_samples(samples, self.look(), f"{self.title}, epoch {context.epoch}")
        context.sg_logger.add_figure(f"batch_{self.batch_idx}_images", figure, context.epoch)

    def samples(self, context: PhaseContext) -> list[Sample]:
        raise NotImplementedError

    def look(self) -> Look:
        return Look()


@register_callback()
class DetectionVisualizationCallback(BatchPicture):
    """Draws found and true boxes. ``post_prediction_callback(preds, device)`` gives for each image rows of left, top,
    right, bottom, score and class; targets are rows of image, class, centre x, centre y, width and height in pixels."""

    title = "boxes"

    def __init__(
        self,
        phase: Phase | str,
        freq: int,
        post_prediction_callback: Function[..., Any] | None = None,
        classes: Sequence[str] | None = None,
        batch_idx: int = 0,
        last_img_idx_in_batch: int = -1,
    ) -> None:
        super().__init__(phase, freq, batch_idx, last_img_idx_in_batch)
        self.post_prediction_callback, self.classes = post_prediction_callback, classes

    def samples(self, context: PhaseContext) -> list[Sample]:
        preds = context.preds
        if self.post_prediction_callback is not None:
            preds = self.post_prediction_callback(preds, context.device)
        found = decode_boxes(preds)
        true = true_rows(context.target, len(found))
        images = context.inputs.detach().cpu()
        return [Sample(image, *pair) for image, *pair in zip(images, found, true, strict=True)]

    def look(self) -> Look:
        return Look(classes=tuple(self.classes)) if self.classes else Look()


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
    """Draws the predicted and the true mask over each image; a pixel counts where its score is above 0."""

    title = "masks"

    def samples(self, context: PhaseContext) -> list[Sample]:
        preds = context.preds[0] if isinstance(context.preds, list | tuple) else context.preds
        images = context.inputs.detach().cpu()
        masks = [(part.detach().cpu().float().squeeze() > 0).long() for part in preds]
        true = [part.detach().cpu().squeeze().long() for part in context.target]
        return [Sample(image, Mask(m), Mask(t)) for image, m, t in zip(images, masks, true, strict=True)]
