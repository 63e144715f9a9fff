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
    Callback,
    EarlyStop,
    ModelConversionCheckCallback,
    PhaseContext,
    TimerCallback,
    Trainer,
    TrainingStageSwitchCallbackBase,
    YoloXTrainingStageSwitchCallback,
    multi_process_safe,
)
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
def test_early_stop_ends_after_as_many_epochs_as_the_original(
    arguments: dict[str, Any], values: list[float], epochs: int, by_name: bool, tmp_path: Path
) -> None:
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
    assert len(names) == 7
    assert all(len(logger.scalars[name]) == 4 for name in names)
    assert "train_crossentropyloss" in logger.scalars
    assert "valid_crossentropyloss" in logger.scalars


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
