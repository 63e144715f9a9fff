"""Starting processes on this machine: results and errors come back, and nobody is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch
from torch import distributed as dist

from cadenza import launch
from cadenza.distributed.launchers.local import WorkerTraceback
from cadenza.distributed.world import World

pytestmark = pytest.mark.timeout(300)


class Odd(ValueError):
    """An exception that only this module knows; it travels all the same."""

    def __init__(self, number):
        super().__init__(f"{number} is odd")
        self.number = number


def introduce(greeting):
    world = World.detect()
    total = torch.tensor([float(world.rank + 1)])
    dist.all_reduce(total)
    return f"{greeting} {world.rank} of {world.world_size}", float(total), os.getpid(), launch(len, "four")


def fail_on_one(rank):
    if World.detect().rank == rank:
        raise Odd(7)
    time.sleep(600)


def test_each_process_takes_part_and_all_results_come_back():
    found = launch(introduce, "rank", results="all")
    assert [one[0] for one in found] == ["rank 0 of 2", "rank 1 of 2"]
    assert {one[1] for one in found} == {3.0}
    assert len({os.getpid(), *(one[2] for one in found)}) == 3
    assert found[0][3] == 4  # a launch inside a worker only calls


def test_an_error_comes_back_whole_and_ends_the_others(monkeypatch):
    monkeypatch.setattr("cadenza.distributed.launchers.local._LAST_WORDS", 1.0)
    with pytest.raises(Odd, match="7 is odd") as caught:
        launch(fail_on_one, 1, timeout=100)  # the other would sleep longer
    assert caught.value.number == 7
    assert any("rank 1" in note for note in caught.value.__notes__)
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert "raise Odd(7)" in str(caught.value.__cause__)


def test_a_launch_that_takes_too_long_is_ended():
    with pytest.raises(TimeoutError, match=r"ranks 0, 1 have not ended after 0\.5 seconds"):
        launch(time.sleep, 60, timeout=0.5)


def test_a_script_without_a_guard_works_and_its_functions_travel_by_value(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import cadenza\ndef double(x):\n    return 2 * x\nprint('result', cadenza.launch(double, 21, workers=2))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "result 42\n", done.stderr


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"workers": 0}, "workers is a whole number"),
        ({"on": "rey"}, "did you mean 'ray'"),
        ({"results": "some"}, 'results is "main" or "all"'),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        launch(len, [], **wrong)


def test_the_world_is_read_from_slurm():
    given = {
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_NTASKS": "8",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "gpu[07-08]",
        "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
        "SLURM_JOB_ID": "123456",
    }
    world = World.detect(given)
    assert (world.rank, world.local_rank, world.world_size, world.local_world_size) == (5, 1, 8, 4)
    assert (world.address, world.source) == ("gpu07", "slurm")
    assert World.detect({**given, "SLURM_NTASKS": "1"}).alone
    assert World.detect({name: value for name, value in given.items() if name != "SLURM_STEP_ID"}).alone
