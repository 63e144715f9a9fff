"""Two tasks as srun starts them: a warning signal to one of them saves and ends both; requeued, they go on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import time

import cadenza
from cadenza import Callback
from cadenza.callbacks import Checkpoint
from cadenza.testing import tiny_loader
from tests.distributed.crew import trainer_with


class Slow(Callback):
    def after_train_iter(self, run):
        open(f"ready-{run.rank}", "w").close()
        time.sleep(0.05)


def train():
    trainer = trainer_with([Checkpoint(to="runs/one"), Slow()], strategy="auto")
    trainer.fit(tiny_loader(160, batch_size=2), epochs=2, resume="auto")
    print(trainer.clock.steps, trainer.clock.samples, flush=True)


cadenza.launch(train)
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def tasks(folder):
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
        "SLURM_NTASKS": "2",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "MASTER_PORT": str(free_port()),
    }
    command = [sys.executable, str(folder / "script.py")]
    environments = [{**common, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    return [
        subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
        for environment in environments
    ]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_warning_to_one_task_saves_both_and_they_go_on(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    begun = tasks(tmp_path)
    until = time.monotonic() + 100
    while not (tmp_path / "ready-1").exists() and time.monotonic() < until:
        time.sleep(0.05)
    begun[1].send_signal(signal.SIGUSR1)
    said = [one.communicate(timeout=100)[0] for one in begun]
    assert [one.returncode for one in begun] == [143, 143]
    assert said == ["", ""]
    again = tasks(tmp_path)
    assert [one.communicate(timeout=100)[0] for one in again] == ["80 320\n"] * 2
    assert [one.returncode for one in again] == [0, 0]
