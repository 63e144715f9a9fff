"""Pictures that SuperGradients callbacks draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza.dialects.supergradients import (
    BinarySegmentationVisualizationCallback,
    Callback,
    DetectionVisualizationCallback,
    ExtremeBatchCaseVisualizationCallback,
    ExtremeBatchDetectionVisualizationCallback,
    ExtremeBatchSegVisualizationCallback,
    MultiscalePrePredictionCallback,
    PhaseContext,
)
from cadenza.dialects.supergradients.extreme_batches import ExtremeBatchCaseVisualizationCallback as Extreme

from .test_supergradients_callbacks import Logged, trained

# Pictures -------------------------------------------------------------------------------------------------------------


class Segments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 1, 3, padding=1)

    def forward(self, images: Any) -> Any:
        return self.layer(images)


def masks() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.rand(2, 3, 8, 8, generator=generator), torch.randint(0, 2, (2, 1, 8, 8), generator=generator).float())
        for _ in range(2)
    ]


SEGMENTING: dict[str, Any] = {"loss": "bce_with_logits", "metric_to_watch": "BCEWithLogitsLoss", "max_epochs": 3}


def test_masks_are_drawn_every_second_epoch(tmp_path: Path) -> None:
    logger = Logged()
    draw = BinarySegmentationVisualizationCallback("VALIDATION_BATCH_END", freq=2, last_img_idx_in_batch=1)
    trained(tmp_path, Segments(), masks(), sg_logger=logger, phase_callbacks=[draw], **SEGMENTING)
    assert list(logger.images) == ["batch_0_images"]
    assert logger.images["batch_0_images"].shape == (1, 8, 8, 3)


def test_boxes_are_drawn(tmp_path: Path) -> None:
    logger = Logged()
    draw = DetectionVisualizationCallback(
        "VALIDATION_BATCH_END", 1, lambda preds: [torch.tensor([[1.0, 1, 5, 5, 0.9, 0]])] * 2, ["cat", "dog"]
    )
    context = PhaseContext(
        epoch=0,
        batch_idx=0,
        inputs=torch.rand(2, 3, 8, 8),
        preds=None,
        target=torch.tensor([[0.0, 1, 4, 4, 2, 2]]),
        sg_logger=logger,
    )
    draw(context)
    (images,) = logger.images.values()
    assert images.shape == (2, 8, 8, 3)
    assert images[0, 1, 1].tolist() == [1.0, 0.0, 0.0]
    assert images[0, 3, 3].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("highest", [True, False])
def test_the_extreme_batch_of_a_pass_is_shown(highest: bool, tmp_path: Path) -> None:
    losses: list[float] = []
    kept: list[float] = []

    class Shows(ExtremeBatchCaseVisualizationCallback):
        def on_validation_batch_end(self, context: PhaseContext) -> None:
            losses.append(float(context.loss_log_items[0]))
            super().on_validation_batch_end(context)

        def process_extreme_batch(self) -> Any:
            kept.append(self.extreme_score)
            return self.extreme_batch

    logger = Logged()
    callback = Shows(loss_to_monitor="BCEWithLogitsLoss", max=highest, max_images=1)
    given = {**SEGMENTING, "max_epochs": 1}
    trained(tmp_path, Segments(), masks(), sg_logger=logger, phase_callbacks=[callback], **given)
    assert kept == [max(losses) if highest else min(losses)]
    (images,) = logger.images.values()
    assert images.shape == (1, 3, 8, 8)


def test_extremes_of_segmentations_and_arguments(tmp_path: Path) -> None:
    logger = Logged()
    callback = ExtremeBatchSegVisualizationCallback(loss_to_monitor="BCEWithLogitsLoss", enable_on_train_loader=True)
    trained(tmp_path, Segments(), masks(), sg_logger=logger, phase_callbacks=[callback], **SEGMENTING)
    assert sorted(logger.images) == ["train/min_BCEWithLogitsLoss_batch", "valid/min_BCEWithLogitsLoss_batch"]
    with pytest.raises(ValueError, match="exactly one of metric and loss_to_monitor"):
        Extreme()


def test_the_extreme_batch_of_detections_is_outlined() -> None:
    logger = Logged()
    callback = ExtremeBatchDetectionVisualizationCallback(
        lambda preds, device: [torch.tensor([[1.0, 1, 5, 5, 0.9, 0]])], normalize_targets=True, loss_to_monitor="box"
    )
    context = PhaseContext(
        epoch=0,
        inputs=torch.rand(1, 3, 8, 8),
        target=torch.tensor([[0.0, 1, 4, 4, 4, 4]]),
        loss_log_items=torch.tensor([0.5]),
        loss_logging_items_names=["box"],
        sg_logger=logger,
    )
    callback.on_validation_loader_start(context)
    callback.on_validation_batch_end(context)
    callback.on_validation_loader_end(context)
    image = logger.images["valid/min_box_batch"][0]
    assert image[1, 1].tolist() == [1.0, 0.0, 0.0]
    assert image[6, 6].tolist() == [0.0, 1.0, 0.0]


def test_batches_of_several_sizes(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Look(Callback):
        def on_train_batch_start(self, context: PhaseContext) -> None:
            sizes.append(context.inputs.shape[-1])

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 2, 1)

        def forward(self, images: Any) -> Any:
            return self.layer(images).mean((2, 3))

    data = [(torch.rand(2, 3, 8, 8), torch.tensor([0, 1]))] * 3
    change = MultiscalePrePredictionCallback(multiscale_range=1, image_size_steps=2, change_frequency=1)
    trained(tmp_path, Pooled(), data, pre_prediction_callback=change, phase_callbacks=[Look()])
    assert set(sizes) == {6, 8, 10}
