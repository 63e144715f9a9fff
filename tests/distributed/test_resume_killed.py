"""Two processes that are killed and started again end as those that were left in peace, to the last bit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from cadenza import launch
from cadenza.distributed.launchers.local import WorkerDied

from ..processes import ranks
from .crew import play
from .trainings import difference, train

pytestmark = pytest.mark.timeout(300)
SCRIPT = """
import sys
from pathlib import Path
from tests.distributed.trainings import train

folder = sys.argv[1]
first = not Path(folder, "once").exists()
Path(folder, "once").touch()
train(f"{folder}/killed", 7 if first else None, {1})
"""


def certified(folder, kills, **options):
    one = partial(train, **options)
    for batch, fallen in kills:
        with pytest.raises(WorkerDied, match="was ended by signal 9"):
            ranks(one, f"{folder}/killed", batch, fallen, timeout=100)
    (folder / "meetings").mkdir()
    ranks(play, folder / "meetings", [(one, (f"{folder}/{name}",)) for name in ("killed", "whole")], timeout=100)
    return difference(f"{folder}/whole", f"{folder}/killed")


def test_killed_all_and_killed_one(tmp_path):
    assert certified(tmp_path, [(3, {0, 1}), (8, {1})]) is None


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_at_random_batches(tmp_path):
    draw = random.Random(11)
    kills = [(batch, draw.choice([{0}, {1}, {0, 1}])) for batch in sorted(draw.sample(range(2, 15), 6))]
    assert certified(tmp_path, kills) is None


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_while_each_process_stores_its_part(tmp_path):
    kills = [(9, {1}), (10, {0}), (18, {0, 1}), (25, {1})]  # the first three right after a save was begun
    how = {"strategy": "fsdp", "norm": False, "samples": 100, "accumulate": 3, "background": True}
    assert certified(tmp_path, kills, **how) is None


@pytest.mark.long
@pytest.mark.timeout(900)
def test_torchrun_restarts_and_the_run_ends_as_if_nothing_had_happened(tmp_path):
    launch(train, f"{tmp_path}/whole", timeout=100)
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(tmp_path / "script.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert difference(f"{tmp_path}/whole", f"{tmp_path}/killed") is None
