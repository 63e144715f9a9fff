"""A run with foreign callbacks that is killed and resumed goes on with their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cadenza import Callback as Native
from cadenza.callbacks import Checkpoint
from cadenza.dialects import fastai, orca
from cadenza.testing import tiny_loader

from .rooms import same, trainer_with, weights


class Killed(Exception):
    pass


class Dies(Native):
    def __init__(self, at: int) -> None:
        self.at = at

    def before_train_iter(self, run: Any) -> None:
        if run.clock.batches == self.at:
            raise Killed


class FastaiRate(fastai.Callback):
    """Depends on the epoch, the iteration and the smoothed loss."""

    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def on_train_begin(self, n_epochs: int, **kwargs: Any) -> None:
        self.told.append(("begin", n_epochs))

    def on_backward_end(self, epoch: int, iteration: int, smooth_loss: Any, **kwargs: Any) -> None:
        self.optimizer.lr = 0.1 / (1 + iteration) + 0.01 * epoch + 0.01 * smooth_loss.item()
        self.told.append((epoch, iteration))


class OrcaRate(orca.Callback):
    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def before_run(self, runner: orca.Runner) -> None:
        self.told.append(("begin", runner.num_epochs))

    def after_train_iter(self, runner: orca.Runner) -> None:
        runner.optimizer.param_groups[0]["lr"] = 0.1 / (1 + runner.global_step) + 0.01 * runner.epochs
        self.told.append((runner.epochs, runner.global_step))

    def after_train_epoch(self, runner: orca.Runner) -> None:
        self.told.append(sorted(runner.epoch_stats.items()))


@pytest.mark.parametrize("kind", [FastaiRate, OrcaRate])
@pytest.mark.parametrize("at", [2, 4, 5])
def test_numbers_go_on(kind: Any, at: int, tmp_path: Path) -> None:
    told: list[Any] = []
    whole = trainer_with(kind(told), Checkpoint(to=tmp_path / "whole", every="1 step"))
    whole.fit(tiny_loader(), tiny_loader(8), epochs=3)
    again: list[Any] = []
    killed = trainer_with(kind(again), Checkpoint(to=tmp_path / "killed", every="1 step"), Dies(at))
    with pytest.raises(Killed):
        killed.fit(tiny_loader(), tiny_loader(8), epochs=3)
    resumed = trainer_with(kind(again), Checkpoint(to=tmp_path / "killed", every="1 step"), Dies(-1))
    resumed.fit(tiny_loader(), tiny_loader(8), epochs=3, resume="auto")
    assert same(weights(whole.model), weights(resumed.model))
    assert [one for one in again if one != ("begin", 3)] == [one for one in told if one != ("begin", 3)]
    assert again.count(("begin", 3)) == 2
