"""SuperGradients' own callbacks: each does here what it did there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza.dialects import installed
from cadenza.dialects.supergradients import (
    BatchStepLinearWarmupLRCallback,
    BinarySegmentationVisualizationCallback,
    Callback,
    CosineLRCallback,
    DetectionVisualizationCallback,
    EarlyStop,
    EpochStepWarmupLRCallback,
    ExponentialLRCallback,
    ExtremeBatchCaseVisualizationCallback,
    ExtremeBatchDetectionVisualizationCallback,
    ExtremeBatchSegVisualizationCallback,
    FunctionLRCallback,
    LinearEpochLRWarmup,
    LRSchedulerCallback,
    ModelConversionCheckCallback,
    MultiscalePrePredictionCallback,
    PhaseContext,
    PolyLRCallback,
    StepLRCallback,
    TimerCallback,
    Trainer,
    TrainingStageSwitchCallbackBase,
    YoloXTrainingStageSwitchCallback,
    multi_process_safe,
)
from cadenza.dialects.supergradients.extreme_batches import ExtremeBatchCaseVisualizationCallback as Extreme
from cadenza.dialects.supergradients.parameters import TrainingParams
from cadenza.testing import tiny_classifier, tiny_loader

PARAMS: dict[str, Any] = {
    "max_epochs": 4,
    "initial_lr": 1.0,
    "optimizer_params": {"momentum": 0.0, "weight_decay": 0.0},
    "loss": "cross_entropy",
    "metric_to_watch": "CrossEntropyLoss",
    "greater_metric_to_watch_is_better": False,
    "average_best_models": False,
    "save_model": False,
    "silent_mode": True,
}


def trained(root: Path, model: Any = None, data: Any = None, **params: Any) -> Trainer:
    torch.manual_seed(0)
    trainer = Trainer("mine", str(root))
    data = tiny_loader(16, batch_size=8) if data is None else data
    trainer.train(tiny_classifier() if model is None else model, {**PARAMS, **params}, data, data)
    return trainer


class Rates(Callback):
    """The learning rate with which each batch is trained."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_train_batch_gradient_step_start(self, context: PhaseContext) -> None:
        self.rates.append(round(context.optimizer.param_groups[0]["lr"], 5))


def rates(root: Path, **params: Any) -> list[float]:
    seen = Rates()
    trained(root, phase_callbacks=[seen], **params)
    return seen.rates


def cosine(step: int, total: int, ratio: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / (total + 1))) * (1 - ratio) + ratio


# Learning rates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"lr_mode": None}, [1.0] * 8),
        ({"lr_mode": "step", "lr_updates": [1, 2], "lr_decay_factor": 0.1}, [1.0] * 4 + [0.1] * 2 + [0.01] * 2),
        ({"lr_mode": "StepLRScheduler", "step_lr_update_freq": 2, "lr_decay_factor": 0.1}, [1.0] * 6 + [0.1] * 2),
        ({"lr_mode": "exp", "lr_decay_factor": 0.25}, [1.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.01562]),
        ({"lr_mode": "poly"}, [1.0, *(round((1 - step / 8) ** 0.9, 5) for step in range(7))]),
        ({"lr_mode": "cosine"}, [1.0, *(round(cosine(step, 8, 0.01), 5) for step in range(7))]),
        (
            {"lr_mode": "function", "lr_schedule_function": lambda initial_lr, epoch, **_: initial_lr / (epoch + 1)},
            [1.0, 1.0, 1.0, 0.5, 0.5, 0.33333, 0.33333, 0.25],
        ),
        ({"lr_mode": {"StepLR": {"step_size": 2, "gamma": 0.1}}}, [1.0] * 4 + [0.1] * 4),
        (
            {"lr_mode": {"ExponentialLR": {"gamma": 0.5, "phase": "TRAIN_BATCH_STEP"}}},
            [0.5**step for step in range(8)],
        ),
        ({"lr_mode": None, "lr_warmup_epochs": 3}, [0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0, 1.0]),
        ({"lr_mode": None, "lr_warmup_epochs": 2, "warmup_initial_lr": 0.0}, [0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]),
        ({"lr_mode": None, "lr_warmup_steps": 2, "warmup_initial_lr": 0.2}, [0.2, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_rates(params: dict[str, Any], expected: list[float], tmp_path: Path) -> None:
    # exp halves a batch here: 0.25 an epoch of two batches
    assert rates(tmp_path, **params) == pytest.approx([round(value, 5) for value in expected], abs=2e-5)


def test_a_plateau_follows_a_metric(tmp_path: Path) -> None:
    mode = {
        "ReduceLROnPlateau": {
            "patience": 0,
            "factor": 0.5,
            "threshold": 10.0,
            "threshold_mode": "abs",
            "phase": "VALIDATION_EPOCH_END",
            "metric_name": "CrossEntropyLoss",
        }
    }
    assert rates(tmp_path, lr_mode=mode) == [1.0] * 4 + [0.5] * 2 + [0.25] * 2
    with pytest.raises(ValueError, match="metric_name goes with ReduceLROnPlateau"):
        trained(tmp_path, lr_mode={"StepLR": {"step_size": 1, "metric_name": "x"}})


def test_rates_by_parameter_groups(tmp_path: Path) -> None:
    trainer = trained(tmp_path, initial_lr={"0": 0.5, "default": 0.1}, lr_mode="step", lr_updates=[0])
    assert trainer.session is not None
    found = {group["name"]: round(group["lr"], 6) for group in trainer.session.optimizer.param_groups}
    assert found == {"0": 0.05, "default": 0.01}


def test_the_old_names_are_the_new_classes() -> None:
    params = TrainingParams(max_epochs=4, lr_warmup_epochs=2)
    shared = {"initial_lr": 1.0, "train_loader_len": 2, "training_params": params}
    assert EpochStepWarmupLRCallback is LinearEpochLRWarmup
    for made in (
        StepLRCallback(lr_updates=[1], **shared),
        ExponentialLRCallback(lr_decay_factor=0.5, **shared),
        PolyLRCallback(**shared),
        CosineLRCallback(**shared),
        FunctionLRCallback(lr_schedule_function=lambda **_: 0.5, **shared),
        BatchStepLinearWarmupLRCallback(lr_warmup_steps=2, **shared),
    ):
        weight = nn.Parameter(torch.zeros(1))
        context = PhaseContext(optimizer=torch.optim.SGD([weight], lr=9.0), epoch=3, batch_idx=1)
        made(context)
        assert (context.optimizer.param_groups[0]["lr"] != 9.0) == (type(made).__name__ != "LinearBatchLRWarmup")


def test_a_scheduler_of_torch_as_a_callback(tmp_path: Path) -> None:
    class Late(Callback):
        """Makes its scheduler when the optimizer is known."""

        def on_training_start(self, context: PhaseContext) -> None:
            scheduler = torch.optim.lr_scheduler.ExponentialLR(context.optimizer, gamma=0.5)
            self.inner = LRSchedulerCallback(scheduler, "TRAIN_EPOCH_END")

        def on_train_loader_end(self, context: PhaseContext) -> None:
            self.inner(context)

    seen = Rates()
    trained(tmp_path, phase_callbacks=[Late(), seen])
    assert seen.rates == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


# Stopping -------------------------------------------------------------------------------------------------------------


class Says(Callback):
    """Puts given values into the validation metrics, one an epoch."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def on_validation_loader_end(self, context: PhaseContext) -> None:
        context.metrics_dict["said"] = self.values[context.epoch]


@pytest.mark.parametrize(
    ("arguments", "values", "epochs"),
    [
        ({"patience": 2}, [3.0, 2.0, 2.0, 2.5, 1.0], 4),
        ({"patience": 0}, [3.0, 2.0, 2.0, 1.0], 3),
        ({"patience": 2, "mode": "max"}, [1.0, 2.0, 3.0, 4.0], 4),
        ({"patience": 9, "threshold": 0.5}, [1.0, 0.4, 0.3], 2),
        ({"patience": 9}, [1.0, math.nan, 1.0], 2),
        ({"patience": 9, "check_finite": False}, [1.0, math.nan, 1.0], 3),
        ({"patience": 1, "min_delta": 0.5}, [1.0, 0.9, 0.1], 2),
    ],
)
@pytest.mark.parametrize("by_name", [True, False])
def test_early_stop(arguments: dict[str, Any], values: list[float], epochs: int, by_name: bool, tmp_path: Path) -> None:
    from cadenza.dialects.supergradients import Phase

    phase: Any = "VALIDATION_EPOCH_END" if by_name else Phase.VALIDATION_EPOCH_END
    stop = EarlyStop(phase, "said", **arguments)
    seen = Rates()
    trained(tmp_path, max_epochs=len(values), phase_callbacks=[Says(values), stop, seen])
    assert len(seen.rates) == 2 * epochs


def test_early_stop_of_a_metric_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no metric 'CrossEntropy'; did you mean 'CrossEntropyLoss'"):
        trained(tmp_path, phase_callbacks=[EarlyStop("VALIDATION_EPOCH_END", "CrossEntropy")])
    with pytest.raises(UserWarning, match="no metric 'other'"):
        trained(tmp_path, phase_callbacks=[EarlyStop("VALIDATION_EPOCH_END", "other", strict=False)])
    with pytest.raises(ValueError, match="EarlyStop looks at VALIDATION_EPOCH_END or TRAIN_EPOCH_END"):
        EarlyStop("PRE_TRAINING", "loss")


# Stages, export, times ------------------------------------------------------------------------------------------------


def test_a_stage_is_switched_once(tmp_path: Path) -> None:
    switched: list[int] = []

    class Switch(TrainingStageSwitchCallbackBase):
        def apply_stage_change(self, context: PhaseContext) -> None:
            switched.append(context.epoch)

    trained(tmp_path, phase_callbacks=[Switch(2)])
    assert switched == [2]


def test_yolox_closes_transforms_and_turns_on_l1(tmp_path: Path) -> None:
    class Mosaic:
        closed = False

        def close(self) -> None:
            self.closed = True

    class Loss(nn.CrossEntropyLoss):
        use_l1 = False

    loader = tiny_loader(16, batch_size=8)
    mosaic = loader.dataset.transforms = [Mosaic(), object()]  # type: ignore[attr-defined]
    loss = Loss()
    switch = YoloXTrainingStageSwitchCallback(next_stage_start_epoch=1)
    trained(tmp_path, data=loader, loss=loss, metric_to_watch="Loss", phase_callbacks=[switch])
    assert mosaic[0].closed  # type: ignore[attr-defined]
    assert loss.use_l1
    with pytest.raises(
        AttributeError, match="CrossEntropyLoss does not have; derive from TrainingStageSwitchCallbackBase"
    ):
        trained(tmp_path, phase_callbacks=[YoloXTrainingStageSwitchCallback(1)])


def test_a_model_is_exported_before_training(tmp_path: Path) -> None:
    check = ModelConversionCheckCallback("tiny", input_dimensions=(4,), primary_batch_size=2)
    trained(tmp_path, max_epochs=1, phase_callbacks=[check])
    assert check.result is not None
    assert not list(tmp_path.rglob("*.onnx"))


class Logged:
    """Keeps what is logged, as a logger of the user's own does."""

    def __init__(self) -> None:
        self.scalars: dict[str, list[float]] = {}
        self.images: dict[str, Any] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int = 0) -> None:
        self.scalars.setdefault(tag, []).append(scalar_value)

    def add_images(self, tag: str, images: Any, data_format: str = "NCHW", global_step: int = 0) -> None:
        self.images[tag] = images

    def add_figure(self, tag: str, figure: Any, global_step: int = 0) -> None:
        self.images[f"{tag} {global_step}"] = figure

    def close(self) -> None: ...


def test_the_logger_is_closed_however_training_ends(tmp_path: Path) -> None:
    ends: list[str] = []

    class Watched(Logged):
        def close(self) -> None:
            ends.append("closed")

    class Fails(Callback):
        def on_train_batch_end(self, context: PhaseContext) -> None:
            raise RuntimeError("out of paper")

        def on_training_end(self, context: PhaseContext) -> None:
            ends.append("training ended")

    with pytest.raises(RuntimeError, match="out of paper"):
        trained(tmp_path, sg_logger=Watched(), phase_callbacks=[Fails()])
    assert ends == ["training ended", "closed"]


def test_times_are_logged(tmp_path: Path) -> None:
    logger = Logged()
    trained(tmp_path, sg_logger=logger, phase_callbacks=[TimerCallback()])
    names = [name for name in logger.scalars if name.startswith("timer/")]
    assert len(names) == 5
    assert all(len(logger.scalars[name]) == 4 for name in names)
    assert "Train_loss" in logger.scalars
    assert "Valid_loss" in logger.scalars


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
    assert list(logger.images) == ["batch_0_images 0", "batch_0_images 2"]


def test_boxes_are_drawn(tmp_path: Path) -> None:
    logger = Logged()
    draw = DetectionVisualizationCallback(
        "VALIDATION_BATCH_END", 1, lambda preds, device: [torch.tensor([[1.0, 1, 5, 5, 0.9, 0]])] * 2, ["cat", "dog"]
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
    assert list(logger.images) == ["batch_0_images 0"]


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
    assert image[:, 1, 1].tolist() == [1.0, 0.0, 0.0]
    assert image[:, 6, 6].tolist() == [0.0, 1.0, 0.0]


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


# Not carried ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("super_gradients.training.utils.callbacks", "DeciLabUploadCallback"),
        ("super_gradients.training.utils.callbacks", "DEKRVisualizationCallback"),
        ("super_gradients.training", "KDTrainer"),
        ("super_gradients.training", "models"),
    ],
)
def test_what_is_not_carried_is_refused_by_name(path: str, name: str) -> None:
    with installed("supergradients"), pytest.raises(ImportError, match=f"supergradients: {name} is not carried: "):
        exec(f"from {path} import {name}")


def test_modules_that_are_not_carried_are_refused_by_name() -> None:
    with installed("supergradients"), pytest.raises(ImportError, match="is not carried: models of the zoo"):
        exec("from super_gradients.training.losses import YoloXDetectionLoss")


def test_multi_process_safe_runs_on_the_first_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    save = multi_process_safe(called.append)
    save(1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    save(2)
    monkeypatch.setenv("LOCAL_RANK", "0")
    save(3)
    assert called == [1, 3]
