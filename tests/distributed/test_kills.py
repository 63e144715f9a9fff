"""A process that is killed: the others end within seconds and say which it was; one that is told to end saves first."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from cadenza import Callback, launch
from cadenza.callbacks import Checkpoint
from cadenza.distributed.launchers.local import WorkerDied
from cadenza.testing import tiny_loader

from ..processes import ranks
from .crew import trainer_with

pytestmark = pytest.mark.timeout(300)


class Signals(Callback):
    """Sends a signal to its own process on one rank, in the second epoch."""

    def __init__(self, number, rank):
        self.number, self.rank = number, rank

    def before_step(self, run):
        if run.rank == self.rank and run.epoch == 1 and run.batch_idx == 0:
            os.kill(os.getpid(), self.number)


def killed(number, rank, file):
    try:
        trainer_with([Signals(number, rank)]).fit(tiny_loader(), tiny_loader(), epochs=3)
    except BaseException as error:
        with open(file, "w") as out:
            out.write(f"{type(error).__name__}: {error}")
        raise


def preempted(folder, epochs, resume):
    """Trains with checkpoints; a rank that is told to end by a signal lets all of them save and end."""
    callbacks = [Checkpoint(to=folder)] + ([] if resume else [Signals(signal.SIGTERM, 1)])
    trainer = trainer_with(callbacks)
    try:
        trainer.fit(tiny_loader(80), epochs=epochs, resume="auto" if resume else None)
    except SystemExit as error:
        return error.code, trainer.clock.steps, None
    return 0, trainer.clock.steps, [parameter.detach().clone() for parameter in trainer.model.parameters()]


def resumed_and_whole(folder):
    return preempted(f"{folder}/run", 3, True), preempted(f"{folder}/whole", 3, True)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_process_that_is_killed_ends_the_others(tmp_path, rank, monkeypatch):
    monkeypatch.setattr("cadenza.distributed.launchers.local._LAST_WORDS", 60.0)  # the other ends by itself
    with pytest.raises(WorkerDied, match=f"rank {rank} of 2 was ended by signal 9"):
        launch(killed, signal.SIGKILL, rank, str(tmp_path / "said"), timeout=200)
    said = (tmp_path / "said").read_text()
    assert said.startswith(f"RankFailed: rank {rank} failed in a place it did not tell: its process is gone")


def test_a_signal_to_one_rank_saves_and_ends_all(tmp_path):
    found = ranks(preempted, str(tmp_path / "run"), 3, False, results="all", timeout=140)
    assert [one[:2] for one in found] == [(143, 7), (143, 7)]
    (one, whole), (other, _) = ranks(resumed_and_whole, str(tmp_path), results="all", timeout=140)
    assert one[:2] == other[:2] == whole[:2] == (0, 15)
    assert all(map(torch.equal, one[2], whole[2]))
    assert all(map(torch.equal, one[2], other[2]))
