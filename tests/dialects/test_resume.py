"""A run with foreign callbacks that is killed and resumed goes on: what they see is what they would have seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Callback as Native
from cadenza import CallbackError, Trainer
from cadenza.callbacks import Checkpoint
from cadenza.dialects import aitoolbox, fastai, orca, supergradients
from cadenza.testing import tiny_classifier, tiny_loader

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


class LoopRate(aitoolbox.AbstractCallback):
    """Depends on all that the loop counts and remembers."""

    def __init__(self, told: list[Any]) -> None:
        super().__init__("rate")
        self.told = told

    def on_batch_end(self) -> None:
        loop = self.train_loop_obj
        mean = loop.parse_loss(loop.loss_batch_accum)
        loop.optimizer.param_groups[0]["lr"] = 0.1 / (1 + loop.total_iteration_idx) + 0.01 * mean
        self.told.append((loop.epoch, loop.iteration, loop.total_iteration_idx, mean))

    def on_epoch_end(self) -> None:
        loop = self.train_loop_obj
        self.told.append({name: list(values) for name, values in loop.train_history.items()})


class ContextRate(supergradients.Callback):
    """Depends on the means of the pass."""

    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def on_train_batch_end(self, context: Any) -> None:
        (mean,) = context.loss_avg_meter.average
        context.optimizer.param_groups[0]["lr"] = 0.1 / (1 + context.batch_idx) + 0.01 * mean + 0.01 * context.epoch
        self.told.append((context.epoch, context.batch_idx, mean))

    def on_train_loader_end(self, context: Any) -> None:
        self.told.append(dict(context.metrics_dict))

    def on_validation_loader_end(self, context: Any) -> None:
        self.told.append(dict(context.metrics_dict))


@pytest.mark.parametrize("kind", [FastaiRate, OrcaRate, LoopRate, ContextRate])
@pytest.mark.parametrize("at", [2, 4])
def test_numbers_go_on(kind: Any, at: int, tmp_path: Path) -> None:
    told: list[Any] = []
    whole = trainer_with(kind(told))
    whole.fit(tiny_loader(), tiny_loader(8), epochs=3)
    again: list[Any] = []
    killed = trainer_with(kind(again), Checkpoint(to=tmp_path / "killed", every="1 step"), Dies(at))
    with pytest.raises(Killed):
        killed.fit(tiny_loader(), tiny_loader(8), epochs=3)
    resumed = trainer_with(kind(again), Checkpoint(to=tmp_path / "killed", every="1 step"), Dies(-1))
    resumed.fit(tiny_loader(), tiny_loader(8), epochs=3, resume="auto")
    assert same(weights(whole.model), weights(resumed.model))
    assert [one for one in again if one != ("begin", 3)] == [one for one in told if one != ("begin", 3)]
    assert again.count(("begin", 3)) == 2 * told.count(("begin", 3))


def test_two_of_one_class_keep_their_states_apart(tmp_path: Path) -> None:
    def stops() -> list[Any]:
        return [
            aitoolbox.EarlyStopping("val_loss", patience=5),
            aitoolbox.EarlyStopping("accumulated_loss", patience=7),
        ]

    trainer = trainer_with(*stops(), Checkpoint(to=tmp_path))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    first, second = stops()
    trainer_with(first, second, Checkpoint(to=tmp_path)).fit(tiny_loader(), tiny_loader(8), epochs=2, resume="auto")
    assert first.counter.best != second.counter.best
    one = aitoolbox.EarlyStopping()
    with pytest.raises(CallbackError, match="stands twice"):
        Trainer(tiny_classifier(), None, nn.CrossEntropyLoss(), callbacks=[one, one])


def test_a_stop_that_was_asked_for_is_not_forgotten(tmp_path: Path) -> None:
    class Asks(supergradients.Callback):
        def on_train_batch_start(self, context: Any) -> None:
            if context.epoch == 0 and context.batch_idx == 0:
                context.update_context(stop_training=True)

    with pytest.raises(Killed):
        trainer_with(Asks(), Checkpoint(to=tmp_path, every="1 step"), Dies(2)).fit(tiny_loader(), epochs=3)
    torch.manual_seed(0)
    resumed = trainer_with(Asks(), Checkpoint(to=tmp_path, every="1 step"), Dies(-1))
    resumed.fit(tiny_loader(), epochs=3, resume="auto")
    assert resumed.clock.epochs == 1
