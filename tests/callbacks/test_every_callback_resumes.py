"""Resumed after any batch, a run with any of the ready callbacks ends as the uninterrupted one, to the last bit."""

from __future__ import annotations

import copy
import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cadenza.callbacks
from cadenza import Callback, CallbackError, Trainer, loop
from cadenza.certify.compare import IGNORED
from cadenza.clock import Duration
from cadenza.engine.resuming import resume_from
from cadenza.resume.collect import alike, collect
from cadenza.resume.restore import Resume

READY = {
    name: cls
    for name in cadenza.callbacks.__all__
    if isinstance(cls := getattr(cadenza.callbacks, name), type) and issubclass(cls, Callback)
}
REFUSES = {"Checkpoint", "Load", "LRFinder"}
"""Two save or load themselves and have tests of their own; a sweep is no training, and says so when it is resumed."""
DEAR = {"ExportCheck", "GradientPlot"}
EPOCHS = 3


class Keeper(Callback):
    """Keeps the state after every batch and every epoch."""

    owns = {"save"}

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []

    def after_train_iter(self, run: Any) -> None:
        run.save()

    def after_epoch(self, run: Any) -> None:
        run.save()

    def save(self, run: Any) -> None:
        self.states.append(copy.deepcopy(collect(run)))


class Net(nn.Sequential):
    """Small, with what callbacks look for: a norm, dropout, and images as inputs."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Dropout(0.2), nn.Linear(3, 2),
        )  # fmt: skip


def made(callback: Callback | None, *others: Callback) -> tuple[Trainer, DataLoader[Any]]:
    torch.manual_seed(0)
    model, generator = Net(), torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(26, 1, 8, 8, generator=generator), torch.randint(0, 2, (26,), generator=generator))
    callbacks = [one for one in (callback, *others) if one is not None]
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", seed=4), DataLoader(
        data, batch_size=6, shuffle=True
    )


def end_of(trainer: Trainer) -> dict[str, Any]:
    rows = trainer.history.to_rows()
    history = {f"history/{number}/{name}": value for number, row in enumerate(rows) for name, value in row.items()}
    return {
        **{name: value for name, value in history.items() if not any(fnmatch.fnmatch(name, one) for one in IGNORED)},
        **trainer.model.state_dict(),
        "optimizer": trainer._training.optimizers[0].state_dict(),
        "rng": torch.get_rng_state(),
    }


def resumed(name: str, state: dict[str, Any]) -> Trainer:
    trainer, loader = made(READY[name].example(), Keeper())
    run = trainer.run(epochs=EPOCHS)
    resume = Resume(copy.deepcopy(state))
    resume_from(run, resume)
    resume.limit(run, EPOCHS, None)
    run.train_loader = run.val_loader = loader
    with run:
        loop.fit(run, Duration.parse("1 epoch"))
    return trainer


PARAMETERS = [pytest.param(n, marks=pytest.mark.long if n in DEAR else ()) for n in READY if n not in REFUSES]


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.filterwarnings("ignore")
def test_it_goes_on_as_if_nothing_had_been(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keeper = Keeper()
    trainer, loader = made(READY[name].example(), keeper)
    trainer.fit(loader, loader, epochs=EPOCHS)
    expected = end_of(trainer)
    for state in (*keeper.states[:-1:3], keeper.states[4]):  # the fourth is after the last batch of an epoch
        found = end_of(resumed(name, state))
        different = {key: (found.get(key), old) for key, old in expected.items() if not alike(found.get(key), old)}
        assert different == {}, f"resumed after batch {state['clock']['batches']}"


@pytest.mark.filterwarnings("ignore:the model has been trained for")
def test_a_sweep_says_that_it_cannot_be_resumed() -> None:
    keeper = Keeper()
    trainer, loader = made(None, keeper)
    trainer.fit(loader, epochs=1)
    with pytest.raises(CallbackError, match="resume without LRFinder"):
        resumed("LRFinder", keeper.states[0])
