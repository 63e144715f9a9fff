"""Workers of a run with checkpoints end when the process that trains was killed, however they were started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cadenza

pytestmark = [pytest.mark.long, pytest.mark.skipif(os.name != "posix", reason="ends processes by SIGKILL")]
SCRIPT = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
import cadenza
from cadenza.callbacks import Checkpoint

class Numbers(Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        with open(os.path.join(sys.argv[2], str(os.getpid())), "w"):
            pass
        return torch.zeros(4), 0

if __name__ == "__main__":
    model = torch.nn.Linear(4, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1])
    saving = Checkpoint(None, to=sys.argv[2] + "-saved")  # a run that can be resumed watches its workers
    cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[saving], device="cpu").fit(loader, epochs=1)
"""


def lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.timeout(120)
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_workers_end_with_the_process_that_trains(context: str, tmp_path: Path) -> None:
    script, seen = tmp_path / "script.py", tmp_path / "seen"
    script.write_text(SCRIPT, encoding="utf-8")
    seen.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(cadenza.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, str(script), context, str(seen)], env=environment) as training:
        while len(list(seen.iterdir())) < 2:
            assert training.poll() is None
            time.sleep(0.1)
        training.send_signal(signal.SIGKILL)
        training.wait()
    workers = [int(path.name) for path in seen.iterdir()]
    while any(map(lives, workers)):  # the timeout of the test ends this if they do not
        time.sleep(0.1)
