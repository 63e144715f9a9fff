"""A captured run on a device, ended by signals between two replays and started again, ends with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cadenza
from cadenza import Callback, Trainer
from cadenza.callbacks import EMA, Checkpoint
from cadenza.certify.compare import comparable, first_difference
from cadenza.checkpoint import Shelf

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Strike(Callback):
    """Sends its own process a signal after so many batches."""

    def __init__(self, batch: int, number: int) -> None:
        self.batch, self.number = batch, number

    def after_iter(self, run: Any) -> None:
        if run.training and run.clock.batches == self.batch:
            os.kill(os.getpid(), self.number)


def train(folder: str, batch: int, number: int) -> None:
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    draw = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(160, 12, generator=draw), torch.randint(0, 4, (160,), generator=draw))
    callbacks = [Checkpoint("5 steps", to=folder), EMA(0.9), Strike(batch, number)]
    adam, loss = torch.optim.AdamW(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
    trainer = Trainer(model, adam, loss, callbacks=callbacks, device="cuda", execution="captured", seed=2)
    trainer.fit(DataLoader(data, 16, shuffle=True), DataLoader(data, 16), epochs=5, resume="auto")
    assert "one by one" not in trainer.explain(), trainer.explain()


def start(folder: Path, batch: int = 0, number: int = 0) -> int:
    source = Path(cadenza.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    command = [sys.executable, __file__, str(folder), str(batch), str(number)]
    return subprocess.run(command, env=environment, timeout=200, check=False).returncode


@pytest.mark.timeout(900)
def test_a_captured_run_that_is_killed_ends_with_the_same_bits(tmp_path: Path) -> None:
    assert start(tmp_path / "whole") == 0
    for batch, number, code in (
        (7, signal.SIGKILL, -signal.SIGKILL),
        (18, signal.SIGTERM, 143),
        (23, signal.SIGKILL, -signal.SIGKILL),
        (31, signal.SIGINT, -signal.SIGINT),
    ):
        assert start(tmp_path / "killed", batch, number) == code
    assert start(tmp_path / "killed") == 0
    whole, killed = (comparable(Shelf(tmp_path / name).read("last").state) for name in ("whole", "killed"))
    assert first_difference(whole, killed) is None


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
