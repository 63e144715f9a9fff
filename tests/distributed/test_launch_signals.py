"""Signals to the process that called ``launch``: the workers save, and the launcher exits with the signal's code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cadenza import Callback, Preempted, launch
from cadenza.callbacks import Checkpoint
from cadenza.checkpoint import Shelf
from cadenza.testing import tiny_loader

from .crew import trainer_with

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.name != "posix", reason="signals of POSIX"),
]


class Signal(Callback):
    """Before the fifth forward each rank notes its process, and rank 0 sends signals to the launcher, its parent."""

    def __init__(self, folder, numbers):
        self.folder, self.numbers, self.left = Path(folder), numbers, 5

    def before_forward(self, run):
        self.left -= 1
        if self.left == 0:
            note_process(self.folder)
            send(self.numbers if run.is_main else ())


def note_process(folder):
    (folder / f"{os.environ['RANK']}.draft").write_text(str(os.getpid()))
    (folder / f"{os.environ['RANK']}.draft").rename(folder / f"{os.environ['RANK']}.pid")


def processes(folder):
    """The processes of both workers, when they have noted them."""
    until = time.monotonic() + 200
    while len(list(folder.glob("*.pid"))) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    return [int(file.read_text()) for file in folder.glob("*.pid")]


def send(numbers, pause=0.0):
    for number in numbers:
        os.kill(os.getppid(), number)
        time.sleep(pause)


def train(folder, numbers):
    torch.set_num_threads(1)
    trainer = trainer_with([Checkpoint(None, to=folder / "saved", final=False), Signal(folder, numbers)])
    trainer.fit(tiny_loader(), epochs=100_000)


def hang(folder, numbers):
    """Heeds nothing, and would take ten minutes."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    note_process(folder)
    processes(folder)
    if os.environ["RANK"] == "0":
        send(numbers, pause=0.5)
    time.sleep(600)


def fail_to_save(folder, numbers):
    """A function that saves by itself, on rank 0 without success."""
    try:
        if os.environ["RANK"] == "0":
            send(numbers)
        time.sleep(600)
    except KeyboardInterrupt:
        if os.environ["RANK"] == "0":
            time.sleep(0.5)
            raise OSError("no space left") from None
        raise


def catch(folder, numbers):
    try:
        if os.environ["RANK"] == "0":
            send(numbers)
        time.sleep(600)
    except KeyboardInterrupt:
        return "caught"


def state(pid):
    """The state of a process as ps shows it; None if it has ended."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None
    return None if found == "Z" else found


def wait_until(reached):
    until = time.monotonic() + 100
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "error", "code"),
    [
        pytest.param(signal.SIGINT, KeyboardInterrupt, None, marks=pytest.mark.long),
        (signal.SIGTERM, Preempted, 143),
        pytest.param(signal.SIGUSR1, Preempted, 143, marks=pytest.mark.long),
    ],
)
def test_a_signal_to_the_launcher_alone_saves(number, error, code, tmp_path, capfd):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGTSTP)
    before = [signal.getsignal(one) for one in numbers]
    with pytest.raises(error, match="came; the run is saved") as caught:
        launch(train, tmp_path, [number], timeout=200)
    assert getattr(caught.value, "code", None) == code
    assert Shelf(tmp_path / "saved").read("last").state["clock"]["batches"] >= 5
    said = capfd.readouterr().err
    assert said.count("cadenza:") == 1, said
    assert f"cadenza: {number.name} came. The processes have 300 seconds to save and end" in said
    assert [signal.getsignal(one) for one in numbers] == before


def test_a_second_ctrl_c_ends_the_workers_at_once(tmp_path):
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch(hang, tmp_path, [signal.SIGINT, signal.SIGINT], timeout=250)
    assert time.monotonic() - began < 200  # not the 300 seconds of grace
    assert not any(map(state, processes(tmp_path)))


def test_workers_that_do_not_end_are_killed_when_the_grace_is_over(tmp_path):
    with pytest.raises(Preempted, match=r"SIGTERM came; the processes of ranks 0, 1 had not ended after 0\.5 seconds"):
        launch(hang, tmp_path, [signal.SIGTERM], grace=0.5, timeout=200)
    assert not any(map(state, processes(tmp_path)))


def test_an_error_of_the_save_is_what_is_raised(tmp_path):
    with pytest.raises(OSError, match="no space left"):
        launch(fail_to_save, tmp_path, [signal.SIGINT], timeout=200)


def test_a_function_that_catches_ctrl_c_returns_its_result(tmp_path):
    assert launch(catch, tmp_path, [signal.SIGINT], results="all", timeout=200) == ["caught", "caught"]


LAUNCHES = """
import sys
from pathlib import Path
import cadenza
from tests.distributed.test_launch_signals import train
cadenza.launch(train, Path(sys.argv[1]), [])
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_workers_stop_with_their_launcher_and_save_when_it_is_killed(tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", LAUNCHES, str(tmp_path)], env=environment) as launcher:
        try:
            workers = processes(tmp_path)
            launcher.send_signal(signal.SIGTSTP)  # as Ctrl-Z does
            wait_until(lambda: [state(pid) for pid in (launcher.pid, *workers)] == ["T", "T", "T"])
            launcher.send_signal(signal.SIGCONT)
            wait_until(lambda: "T" not in map(state, workers))
        finally:
            launcher.kill()
    wait_until(lambda: not any(map(state, workers)))
    assert Shelf(tmp_path / "saved").read("last").state["clock"]["batches"] >= 5
