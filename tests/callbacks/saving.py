"""What the tests of ``Checkpoint`` share: a small training that can be interrupted and made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cadenza import Callback, Trainer
from cadenza.certify.compare import comparable, first_difference
from cadenza.checkpoint import Shelf
from cadenza.resume.collect import collect

SAMPLES, BATCHES = 26, 5


class Oops(Exception):
    """What ends a run in these tests."""


def loader(seed: int = 1, *, shuffle: bool = True) -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(seed)
    data = TensorDataset(torch.randn(SAMPLES, 4, generator=draw), torch.randint(0, 3, (SAMPLES,), generator=draw))
    return DataLoader(data, batch_size=6, shuffle=shuffle)


def trainer(*callbacks: Callback, hidden: int = 8, optimizers: int = 1, **more: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.Dropout(0.2), nn.Linear(hidden, 3))
    made = [torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9) for part in (model[:2], model[2:])]
    optimizer = made if optimizers == 2 else torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", seed=2, **more)


class Break(Callback):
    """Raises at the ``count``-th time ``point`` is played, in ``stage`` if one is given."""

    order = 10**6

    def __init__(self, point: str, count: int = 1, stage: str | None = None, error: type[BaseException] = Oops) -> None:
        self.point, self.left, self.in_stage, self.error = point, count, stage, error

    def plays(self) -> dict[str, Any]:
        return {self.point: self.play}

    def play(self, run: Any) -> None:
        if run.mode == "fit" and self.in_stage in (None, run.stage):
            self.left -= 1
            if self.left == 0:
                raise self.error("on purpose")


class End(Callback):
    """Keeps everything that shapes the future as it is after the run."""

    passive = True
    order = 10**6

    def after_run(self, run: Any) -> None:
        self.state = comparable(collect(run))


def difference(one: End, other: End) -> str | None:
    """The first thing in which two ended runs differ."""
    return first_difference(one.state, other.state)


def values(folder: Path) -> dict[str, float | None]:
    """For each checkpoint its name without the number, and its value."""
    return {name.partition("-")[2]: meta["value"] for name, meta in Shelf(folder).metas().items()}
