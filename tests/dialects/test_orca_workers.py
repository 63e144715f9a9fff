"""Orca's Estimator on several workers: batches are divided, requests are agreed, and callbacks come back."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from cadenza import Preempted
from cadenza.callbacks import Checkpoint
from cadenza.checkpoint import Shelf
from cadenza.dialects.orca import Callback, Estimator, MainCallback, Runner
from cadenza.testing import tiny_classifier, tiny_loader

from ..distributed.engines import needs

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def model_creator(config: dict[str, Any]) -> nn.Module:
    return tiny_classifier()


def optimizer_creator(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def data_creator(config: dict[str, Any], batch_size: int) -> DataLoader[Any]:
    return tiny_loader(24, batch_size)


def estimator(backend: str, workers: int) -> Estimator:
    return Estimator.from_torch(
        model=model_creator,
        optimizer=optimizer_creator,
        loss=nn.CrossEntropyLoss(),
        backend=backend,
        workers_per_node=workers,
    )


class Look(Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def after_train_iter(self, runner: Runner) -> None:
        self.seen.append((runner.rank, runner.size, len(runner.batch[0])))


class Stops(Callback):
    """Asks on one rank alone."""

    def after_train_iter(self, runner: Runner) -> None:
        if runner.rank == 1 and runner.global_step == 2:
            runner.stop = True


class Warns(Callback):
    """Sends a SIGTERM to the process that launched the workers, as a scheduler does."""

    def after_train_iter(self, runner: Runner) -> None:
        if runner.rank == 0 and runner.global_step == 2:
            os.kill(os.getppid(), signal.SIGTERM)


class Accumulates(MainCallback):
    def on_iter_backward(self, runner: Runner) -> None:
        (runner.loss / 3).backward()  # type: ignore[no-untyped-call]
        if (runner.batch_idx + 1) % 3 == 0:
            runner.optimizer.step()
            runner.optimizer.zero_grad()


def difference(first: Estimator, second: Estimator) -> float:
    pairs = zip(first.get_model().parameters(), second.get_model().parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("backend", ["local", *(pytest.param(name, marks=needs(name)) for name in ("ray", "spark"))])
def test_workers_share_the_batch(backend: str) -> None:
    two, one, look = estimator(backend, 2), estimator("local", 1), Look()
    rows = two.fit(data_creator, epochs=2, batch_size=8, validation_data=data_creator, callbacks=[look])
    alone = one.fit(data_creator, epochs=2, batch_size=8, validation_data=data_creator)
    assert look.seen == [(0, 2, 4)] * 6  # each worker has half of the eight; rank 0's callback came back
    for row, expected in zip(rows, alone, strict=True):
        assert (row["batch_count"], row["num_samples"]) == (expected["batch_count"], expected["num_samples"])
        assert row["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-5)
    assert difference(two, one) < 1e-6


def test_state_lasts_between_calls_and_a_stop_is_agreed() -> None:
    two = estimator("local", 2)
    rows = two.fit(data_creator, epochs=4, batch_size=4, callbacks=[Stops()], reduce_results=False)
    assert [[row["batch_count"] for row in epoch] for epoch in rows] in (
        [[2, 2]],
        [[3, 3]],
    )  # the others learn of it with the gradients of the next batch
    assert two.fit(data_creator, epochs=1, batch_size=8)[0]["epoch"] == 2
    assert two.evaluate(data_creator, batch_size=8)["num_samples"] == 24
    assert two.evaluate(data_creator, batch_size=8, num_steps=1)["num_samples"] == 8  # one batch of each worker
    assert two.predict(data_creator).shape == (24, 3)


def test_accumulation_as_users_wrote_it_over_two_workers() -> None:
    two, one = estimator("local", 2), estimator("local", 1)
    for each in (two, one):
        each.fit(data_creator, epochs=2, batch_size=8, callbacks=[Accumulates()])
    assert difference(two, one) < 1e-6


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_signal_to_the_process_that_launched_them_saves(tmp_path: Path) -> None:
    saving = Checkpoint(None, to=tmp_path, final=False)
    with pytest.raises(Preempted, match="SIGTERM came; the run is saved"):
        estimator("local", 2).fit(data_creator, epochs=100_000, batch_size=8, callbacks=[Warns(), saving])
    assert Shelf(tmp_path).read("last").meta["step"] >= 2
