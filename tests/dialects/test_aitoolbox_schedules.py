"""Learning rates of AIToolbox, as its schedule callbacks set them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cadenza.dialects.aitoolbox import (
    AbstractCallback,
    ConstantWithWarmup,
    CosineWithWarmup,
    GeneralLRSchedulerCallback,
    HardRestartsCosineWithWarmup,
    LambdaLRScheduler,
    LinearWithWarmup,
    MultiStepLRScheduler,
    ReduceLROnPlateauMetricScheduler,
    ReduceLROnPlateauScheduler,
    StepLRScheduler,
)
from cadenza.testing import tiny_loader

from .test_aitoolbox_callbacks import new_loop

# Schedules ------------------------------------------------------------------------------------------------------------


class Rates(AbstractCallback):
    def __init__(self, hook: str) -> None:
        super().__init__("rates", execution_order=50)
        self.rates: list[float] = []
        setattr(self, hook, self._note)

    def _note(self) -> None:
        self.rates.append(round(self.train_loop_obj.optimizer.param_groups[0]["lr"], 6))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (lambda: StepLRScheduler(2, gamma=0.1), [1.0, 0.1, 0.1, 0.01]),
        (lambda: MultiStepLRScheduler([1, 3], gamma=0.1), [0.1, 0.1, 0.01, 0.01]),
        (lambda: LambdaLRScheduler(lambda epoch: 1 / (1 + epoch)), [0.5, 0.333333, 0.25, 0.2]),
        (
            lambda: GeneralLRSchedulerCallback(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5),
            [0.5, 0.25, 0.125, 0.0625],
        ),
    ],
)
def test_schedules_of_epochs(schedule: Any, rates: list[float]) -> None:
    seen = Rates("on_epoch_end")
    loop = new_loop(lr=1.0)
    loop.fit(num_epochs=4, callbacks=[schedule(), seen])
    assert seen.rates == rates
    assert len(loop.get_schedulers()) == 1


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (lambda: ConstantWithWarmup(2), [0.5, 1.0, 1.0, 1.0]),
        (lambda: LinearWithWarmup(1, 5), [1.0, 0.75, 0.5, 0.25]),
        (lambda: CosineWithWarmup(0, 4), [0.853553, 0.5, 0.146447, 0.0]),
        (lambda: HardRestartsCosineWithWarmup(0, 4, num_cycles=2), [0.5, 1.0, 0.5, 0.0]),
    ],
)
def test_warmups_go_by_real_steps(schedule: Any, rates: list[float]) -> None:
    seen = Rates("on_batch_end")
    loop = new_loop(lr=1.0)
    loop.train_loader = tiny_loader(64, batch_size=8)
    loop.fit(num_epochs=1, callbacks=[schedule(), seen], grad_accumulation=2)
    assert seen.rates[1::2] == rates


@pytest.mark.parametrize(
    "schedule",
    [
        ReduceLROnPlateauScheduler(patience=0, factor=0.5, threshold=0.9),
        ReduceLROnPlateauMetricScheduler("val_loss", patience=0, factor=0.5, threshold=0.9),
    ],
)
def test_a_plateau_of_the_validation_loss(schedule: Any) -> None:
    loop = new_loop(lr=0.001)
    loop.fit(num_epochs=3, callbacks=[schedule])
    assert loop.optimizer.param_groups[0]["lr"] == 0.00025
