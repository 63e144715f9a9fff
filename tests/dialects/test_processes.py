"""Callbacks of AIToolbox and SuperGradients among several processes, on CPUs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza.dialects.aitoolbox import AbstractCallback, TrainLoop, TTBasicModel
from cadenza.dialects.supergradients import Callback, PhaseContext, Trainer, multi_process_safe

from ..processes import ranks


def points() -> Any:
    targets = torch.arange(24) % 3
    inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(1)) + targets.reshape(-1, 1)
    return DataLoader(TensorDataset(inputs, targets), batch_size=4)


class Net(TTBasicModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Any) -> Any:
        return self.layer(inputs)


class Heard(AbstractCallback):
    """Writes down the hooks that it hears; the one of rank 1 asks for the stop."""

    def __init__(self, place: int | None) -> None:
        super().__init__(f"heard {place}", device_idx_execution=place)
        self.heard: list[str] = []

    def on_multiprocess_start(self) -> None:
        self.heard.append("started")

    def on_epoch_end(self) -> None:
        self.heard.append(f"epoch {self.train_loop_obj.epoch}")
        if self.device_idx_execution == 1 and self.train_loop_obj.epoch == 1:
            self.train_loop_obj.early_stop = True


def train_aitoolbox() -> tuple[list[list[str]], torch.Tensor, list[float]]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = TrainLoop(model, points(), points(), None, sgd, nn.CrossEntropyLoss(), gpu_mode="ddp")
    callbacks = [Heard(0), Heard(1), Heard(None)]
    trained = loop.fit(num_epochs=4, callbacks=callbacks)
    weight = trained.layer.weight.detach()  # type: ignore[union-attr]
    return [one.heard for one in callbacks], weight, loop.train_history["val_loss"]


def train_both(root: str) -> tuple[Any, Any]:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return train_aitoolbox(), train_supergradients(root)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def found(root: Path) -> list[tuple[Any, Any]]:
    """What each of two processes returned; they are started once for all tests."""
    results: list[tuple[Any, Any]] = ranks(train_both, str(root), results="all")
    return results


def test_aitoolbox_device_index_and_early_stop_among_cpu_processes(found: list[tuple[Any, Any]]) -> None:
    first, second = (one[0] for one in found)
    both = ["started", "epoch 0", "epoch 1"]
    assert first[0] == [both, [], both]
    assert second[0] == [[], both, both]
    assert torch.equal(first[1], second[1])
    assert first[2] == second[2]


def by_hand() -> torch.Tensor:
    """Two epochs over batches of 8: what two processes with batches of 4 train."""
    torch.manual_seed(0)
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = points().dataset.tensors
    for _ in range(2):
        for start in range(0, 12, 4):
            rows = [number for n in range(start, start + 4) for number in (2 * n, 2 * n + 1)]
            sgd.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            sgd.step()
    return model.layer.weight.detach()


def test_aitoolbox_models_that_compute_their_own_loss_are_trained_together(found: list[tuple[Any, Any]]) -> None:
    torch.testing.assert_close(found[0][0][1], by_hand())


class Saved(Callback):
    """What its methods do on which process."""

    def __init__(self) -> None:
        self.safe: list[int] = []
        self.everywhere: list[tuple[int, bool]] = []

    @multi_process_safe
    def on_train_loader_start(self, context: PhaseContext) -> None:
        self.safe.append(context.epoch)

    def on_train_loader_end(self, context: PhaseContext) -> None:
        self.everywhere.append((context.epoch, context.ddp_silent_mode))

    def on_validation_batch_start(self, context: PhaseContext) -> None:
        if context.ddp_silent_mode and context.epoch == 1:
            context.update_context(stop_training=True)


def train_supergradients(root: str) -> tuple[list[int], list[tuple[int, bool]], torch.Tensor, str | None]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    saved, model = Saved(), nn.Linear(4, 3)
    params = {
        "max_epochs": 4,
        "initial_lr": 0.1,
        "loss": "cross_entropy",
        "metric_to_watch": "CrossEntropyLoss",
        "greater_metric_to_watch_is_better": False,
        "average_best_models": False,
        "silent_mode": True,
        "phase_callbacks": [saved],
    }
    with pytest.raises(ValueError, match="sync_bn needs GPUs"):  # found although no process group has begun yet
        Trainer("other", root).train(model, {**params, "sync_bn": True}, points(), points())
    trainer = Trainer("mine", root)
    trainer.train(model, params, points(), points())
    return saved.safe, saved.everywhere, model.weight.detach(), trainer.checkpoints_dir_path


def test_supergradients_among_processes(found: list[tuple[Any, Any]], root: Path) -> None:
    first, second = (one[1] for one in found)
    assert first[0] == [0, 1]
    assert second[0] == []
    assert first[1] == [(0, False), (1, False)]
    assert second[1] == [(0, True), (1, True)]
    assert torch.equal(first[2], second[2])
    assert len(list(root.rglob("ckpt_latest.pth"))) == 1
    assert len(list(root.glob("mine/RUN_*"))) == 1
    assert first[3] == second[3] == str(next(root.glob("mine/RUN_*")))
