"""A small training in an experiment, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.experiment import Experiment
from cadenza.testing import tiny_classifier, tiny_loader


def trainer_of(*callbacks: Callback, experiment: Any = None, lr: float = 0.1, **options: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return Trainer(
        model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, experiment=experiment, device="cpu", **options
    )


def fitted(
    root: Path, *callbacks: Callback, name: str = "first", epochs: int = 2, lr: float = 0.1, **options: Any
) -> Experiment:
    """The experiment of a training that ended, 3 steps an epoch."""
    experiment = Experiment("tiny", name, root, **options)
    trainer_of(*callbacks, experiment=experiment, lr=lr).fit(tiny_loader(), tiny_loader(9), epochs=epochs)
    return experiment


class EveryIteration(Callback):
    """Logs the loss of each batch."""

    def after_loss(self, run: Any) -> None:
        if run.training:
            run.log("train/loss", run.loss)


class At(Callback):
    """Does something at one point, the so-manieth time."""

    def __init__(self, point: str, act: Any, time: int = 1) -> None:
        self.point, self.act, self.left = point, act, time

    def plays(self) -> dict[str, Any]:
        return {self.point: self._play}

    def _play(self, run: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.act(run)
