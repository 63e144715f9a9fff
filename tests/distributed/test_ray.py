"""Trainings on a real Ray on this machine: results, errors, and a worker that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import cadenza
from cadenza import Callback, launch
from cadenza.callbacks import Checkpoint
from cadenza.testing import tiny_loader

from ..processes import run
from .crew import trainer_with
from .engines import needs

pytestmark = [needs("ray"), pytest.mark.timeout(600)]
EPOCHS = 4


@pytest.fixture(scope="module")
def connected():
    """One Ray for all tests here: starting it costs more than what they do with it."""
    from cadenza.distributed.launchers.ray import cluster

    with pytest.MonkeyPatch.context() as patch, cluster(None, 2):
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")  # a report waits until Ray has read the one before
        yield


class Killed(Callback):
    """Kills its process on rank 1 in the third epoch, unless that has happened before."""

    def __init__(self, mark):
        self.mark = Path(mark)

    def before_step(self, run):
        if run.rank == 1 and run.epoch == 2 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Notes(Callback):
    def after_epoch(self, run):
        run.store.setdefault("by", []).append(os.getpid())


def trained(folder, *callbacks):
    """Trains with checkpoints, and returns what a caller may want to know."""
    saving = Checkpoint(to=f"{folder}/checkpoints", keep_last=2, background=False)
    trainer = trainer_with([saving, Notes(), *callbacks])
    history = trainer.fit(tiny_loader(), tiny_loader(), epochs=EPOCHS, resume="auto")
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    return {"weights": weights, "history": history, "metrics": trainer.validate(tiny_loader()), "store": trainer.store}


def with_and_without_fault(folder):
    torch.set_num_threads(1)
    return trained(f"{folder}/whole"), trained(f"{folder}/killed", Killed(f"{folder}/mark"))


class Odd(ValueError):
    def __init__(self, number):
        super().__init__(f"{number} is odd")
        self.number = number


class Fault(Callback):
    def after_step(self, run):
        if run.rank == 1:
            raise Odd(7)


def fail_on_one():
    trainer_with([Fault()]).fit(tiny_loader(), epochs=1)


@pytest.fixture(scope="module")
def outcome(connected, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    found = launch(
        with_and_without_fault, str(folder), on="ray", results="all", restarts=1, storage=folder / "storage", name="one"
    )
    return folder, found


def test_a_worker_that_is_killed_is_started_again_and_ends_with_the_same_weights(outcome):
    folder, found = outcome
    assert (folder / "mark").exists()
    for whole, killed in found:
        assert torch.equal(whole["weights"], killed["weights"])
    assert torch.equal(found[0][0]["weights"], found[1][0]["weights"])
    assert len({os.getpid(), *(one[1]["store"]["by"][-1] for one in found)}) == 3


def test_history_metrics_and_store_come_back(outcome):
    whole, killed = outcome[1][0]
    assert len(killed["history"].epochs) == EPOCHS
    assert killed["history"]["val/loss"] == whole["history"]["val/loss"]
    assert killed["metrics"]["val/loss"] == killed["history"]["val/loss"][-1]
    by = killed["store"]["by"]
    assert len(by) == EPOCHS
    assert by[0] == by[1] != by[2] == by[3]  # the processes that did the first two are gone, their work is not


def test_metrics_and_checkpoints_are_in_the_storage_of_ray(outcome):
    from ray.train import Result

    from cadenza.checkpoint import Shelf

    folder, found = outcome
    kept = Result.from_path(str(folder / "storage" / "one")).best_checkpoints
    checkpoint, metrics = kept[-1]
    last = found[0][1]["history"].epochs[-1]
    assert metrics["val/loss"] == last["val/loss"]
    epochs = [metrics["epochs"] for _, metrics in kept]
    assert epochs[:5] == [1, 2, 3, 4, 1]  # whether Ray has heard of the next when the worker dies is a matter of luck
    assert epochs[-2:] == [3, 4]
    state = Shelf(checkpoint.path).read("last").state
    weights = torch.cat([part.flatten() for part in state["model"].values()])
    assert torch.equal(weights, found[0][1]["weights"])
    assert not list(folder.glob("*/.for-ray-*"))


@pytest.mark.long
def test_an_error_comes_back_whole_with_its_rank(connected):
    with pytest.raises(Odd, match="7 is odd") as caught:
        launch(fail_on_one, on="ray")
    assert caught.value.number == 7
    assert any("rank 1" in note for note in caught.value.__notes__)
    assert "raise Odd(7)" in str(caught.value.__cause__)


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ValueError, match="restarts is a whole number"):
        launch(len, "", on="ray", restarts=-1)


def test_a_missing_ray_is_named_with_its_extra():
    code = (
        "import sys; sys.modules['ray'] = None; import cadenza\n"
        "try: cadenza.launch(len, '', on='ray')\nexcept ModuleNotFoundError as error: print(error)"
    )
    done = run(code)
    assert done.stdout == "launching on 'ray' needs ray: pip install 'cadenza[ray]'\n", done.stderr


SLEEPS = """
import os, signal, sys, time, cadenza

signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background begins without it

def sleep(folder):
    with open(f"{folder}/{os.environ['RANK']}.draft", "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, f"{folder}/{os.environ['RANK']}")
    time.sleep(600)

try:
    cadenza.launch(sleep, sys.argv[1], on="ray")
except KeyboardInterrupt:
    sys.exit(130)
"""


def is_running(pid):
    said = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(said.strip()) and not said.startswith("Z")


@pytest.mark.long
def test_ctrl_c_ends_the_launch_and_its_workers(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(cadenza.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", SLEEPS, str(tmp_path)], env=environment)
    try:
        until = time.monotonic() + 300
        while not all((tmp_path / rank).exists() for rank in "01") and time.monotonic() < until:
            time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
    until = time.monotonic() + 30
    pids = [int((tmp_path / rank).read_text()) for rank in "01"]
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.2)
    assert not any(map(is_running, pids))
