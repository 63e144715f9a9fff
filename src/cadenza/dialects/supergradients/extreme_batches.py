"""The batch of an epoch that went best or worst, shown."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cadenza.callbacks.showing.predictions import decode_boxes
from cadenza.dialects.supergradients.callback import Callback, PhaseContext
from cadenza.dialects.supergradients.metrics import update_metric
from cadenza.dialects.supergradients.pictures import tinted, with_boxes
from cadenza.dialects.supergradients.registry import register_callback
from cadenza.foundation.torch_private import tree_map

__all__ = [
    "ExtremeBatchCaseVisualizationCallback",
    "ExtremeBatchDetectionVisualizationCallback",
    "ExtremeBatchSegVisualizationCallback",
]


class ExtremeBatchCaseVisualizationCallback(Callback):
    """Keeps the batch with the highest (``max=True``) or lowest value of a metric or a loss, and every ``freq`` epochs
    logs the images that ``process_extreme_batch`` makes of it. Give exactly one of ``metric`` (an object with
    ``update(preds, target)``, ``compute()`` and ``reset()``) and ``loss_to_monitor``, the name of a loss."""

    def __init__(
        self,
        metric: Any = None,
        metric_component_name: str | None = None,
        loss_to_monitor: str | None = None,
        max: bool = False,
        freq: int = 1,
        enable_on_train_loader: bool = False,
        enable_on_valid_loader: bool = True,
        max_images: int = -1,
    ) -> None:
        if (metric is None) == (loss_to_monitor is None):
            raise ValueError("give exactly one of metric and loss_to_monitor")
        self.metric, self.metric_component_name, self.loss_to_monitor = metric, metric_component_name, loss_to_monitor
        self.max, self.freq, self.max_images = max, freq, max_images
        self.stages = {"train": enable_on_train_loader, "valid": enable_on_valid_loader}
        self._forget()

    def _forget(self) -> None:
        self.extreme_score = -math.inf if self.max else math.inf
        self.extreme_batch: Any = None
        self.extreme_preds: Any = None
        self.extreme_targets: Any = None

    def process_extreme_batch(self) -> Any:
        """The images, (N, H, W, C) from 0 to 1, of ``extreme_batch``, ``extreme_preds`` and ``extreme_targets``."""
        raise NotImplementedError(f"{type(self).__name__} does not say what is shown: define process_extreme_batch")

    def on_train_loader_start(self, context: PhaseContext) -> None:
        self._forget()

    def on_train_batch_end(self, context: PhaseContext) -> None:
        self._look("train", context)

    def on_train_loader_end(self, context: PhaseContext) -> None:
        self._show("train", context)

    on_validation_loader_start = on_train_loader_start

    def on_validation_batch_end(self, context: PhaseContext) -> None:
        self._look("valid", context)

    def on_validation_loader_end(self, context: PhaseContext) -> None:
        self._show("valid", context)

    def _look(self, stage: str, context: PhaseContext) -> None:
        if not self.stages[stage] or (context.epoch + 1) % self.freq:
            return
        score = self._score(context)
        if score > self.extreme_score if self.max else score < self.extreme_score:
            self.extreme_score = score
            self.extreme_batch, self.extreme_preds, self.extreme_targets = (
                kept(part) for part in (context.inputs, context.preds, context.target)
            )

    def _score(self, context: PhaseContext) -> float:
        if self.metric is None:
            names = list(context.loss_logging_items_names)
            if self.loss_to_monitor not in names:
                raise KeyError(
                    f"supergradients: there is no loss {self.loss_to_monitor!r}; there are {', '.join(names)}"
                )
            return float(context.loss_log_items[names.index(self.loss_to_monitor)])
        self.metric.reset()
        update_metric(self.metric, vars(context))
        found = self.metric.compute()
        return float(found[self.metric_component_name] if self.metric_component_name else found)

    def _show(self, stage: str, context: PhaseContext) -> None:
        if self.extreme_batch is not None:
            images = self.process_extreme_batch()
            shown = images if self.max_images < 0 else images[: self.max_images]
            what = self.loss_to_monitor or self.metric_component_name or type(self.metric).__name__
            tag = f"{stage}/{'max' if self.max else 'min'}_{what}_batch"
            context.sg_logger.add_images(tag=tag, images=shown, global_step=context.epoch, data_format="NHWC")
        self._forget()


@register_callback()
class ExtremeBatchSegVisualizationCallback(ExtremeBatchCaseVisualizationCallback):
    """Shows the images with the predicted classes laid over them; pixels of ``ignore_idx`` are left out."""

    def __init__(self, ignore_idx: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ignore_idx = ignore_idx

    def process_extreme_batch(self) -> Any:
        preds = self.extreme_preds[0] if isinstance(self.extreme_preds, list | tuple) else self.extreme_preds
        classes = preds.argmax(1) if preds.shape[1] > 1 else (preds.squeeze(1) > 0).long()
        counted = (classes > 0) & (self.extreme_targets.reshape(classes.shape) != self.ignore_idx)
        return tinted(self.extreme_batch, counted).permute(0, 2, 3, 1)


@register_callback()
class ExtremeBatchDetectionVisualizationCallback(ExtremeBatchCaseVisualizationCallback):
    """Shows the images with found boxes in red and true ones in green. With ``normalize_targets`` the targets are in
    pixels already; otherwise they are fractions of the image."""

    def __init__(
        self, post_prediction_callback: Any, classes: Any = None, normalize_targets: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.post_prediction_callback, self.classes = post_prediction_callback, classes
        self.normalize_targets = normalize_targets

    def process_extreme_batch(self) -> Any:
        found = decode_boxes(self.post_prediction_callback(self.extreme_preds, torch.device("cpu")))
        height, width = self.extreme_batch.shape[-2:]
        size = torch.tensor([1.0, 1.0] if self.normalize_targets else [width, height]).repeat(2)
        return with_boxes(self.extreme_batch, found, self.extreme_targets, size).permute(0, 2, 3, 1)


def kept(part: Any) -> Any:
    """A copy in main memory, without the graph."""
    return tree_map(lambda leaf: leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf, part)
