"""Learning rates of SuperGradients, as its schedules set them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza.dialects.supergradients import (
    BatchStepLinearWarmupLRCallback,
    Callback,
    CosineLRCallback,
    EpochStepWarmupLRCallback,
    ExponentialLRCallback,
    FunctionLRCallback,
    LinearEpochLRWarmup,
    LRSchedulerCallback,
    PhaseContext,
    PolyLRCallback,
    StepLRCallback,
)
from cadenza.dialects.supergradients.parameters import TrainingParams

from .test_supergradients_callbacks import Rates, trained


def rates(root: Path, **params: Any) -> list[float]:
    seen = Rates()
    trained(root, phase_callbacks=[seen], **params)
    return seen.rates


def cosine(step: int, total: int, ratio: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / (total + 1))) * (1 - ratio) + ratio


# Learning rates -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The learning rate was 0")  # in a warm-up that begins there
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
def test_training_parameters_give_the_rates_of_the_original(
    params: dict[str, Any], expected: list[float], tmp_path: Path
) -> None:
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
