"""``cadenza launch``: a recipe in several processes, as a user types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cadenza
from cadenza.checkpoint import Shelf
from cadenza.cli.main import main
from cadenza.experiment.records import read_run, run_folders

from ..distributed.engines import needs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["points"], "launch starts train, not 'points'"),
        (["--on", "moon", "train", "digits"], "--on is one of local, ray, spark, not 'moon'"),
        (["--restarts", "2", "train", "digits"], "--restarts is for --on ray, not for local"),
        (["--workers", "0", "train", "digits"], "Invalid value for '--workers'"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_of_launch_is_exit_code_2_and_says_what_is_wrong(words, said, capsys):
    assert main(["launch", *words]) == 2
    assert said in capsys.readouterr().err


def check(folder: Path, out: str) -> None:
    lines = out.splitlines()
    assert lines[0].startswith("epoch 1/1")
    assert lines[-2].startswith("val/accuracy 0.")
    assert Path(lines[-1]) == run_folders("runs")[-1]
    assert len(lines) == 3  # nothing of the others
    assert read_run(run_folders("runs")[-1]).state == "finished"
    assert len(run_folders("runs")) == 1


LONG = (pytest.mark.long, pytest.mark.timeout(600))


@pytest.mark.parametrize(
    "engine", ["local", *(pytest.param(one, marks=[needs(one), *LONG]) for one in ("ray", "spark"))]
)
def test_a_recipe_is_trained_by_two_processes(engine, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "--workers", "2", "--on", engine, "train", "digits", "fit.epochs=1"]) == 0
    check(tmp_path, capfd.readouterr().out)


def test_an_error_is_one_message(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "train", "digits", "fit.epoch=1"]) == 1
    told = capfd.readouterr().err
    assert told.startswith("cadenza: ")
    assert "fit.epoch" in told


IN_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # what runs in the background begins without it
os.execv(sys.executable, [sys.executable, "-m", "cadenza.cli.main", *sys.argv[1:]])
"""


@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_ctrl_c_in_the_terminal_saves_once_and_says_how_to_resume(tmp_path):
    """The terminal sends SIGINT to the whole group; a worker that got it twice would end without a save."""
    words = ["launch", "--workers", "2", "train", "digits", "fit.epochs=1000", "~callbacks.early_stopping"]
    environment = {**os.environ, "PYTHONPATH": str(Path(cadenza.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    terminal, end = os.openpty()
    command = [sys.executable, "-c", IN_TERMINAL, *words]
    launcher = subprocess.Popen(
        command, stdin=end, stdout=end, stderr=end, cwd=tmp_path, env=environment, start_new_session=True
    )
    os.close(end)
    try:
        said, pressed = b"", False
        while read := part_of(terminal):
            said += read
            if b" 3/1000" in said and not pressed:
                pressed = True
                os.write(terminal, b"\x03")
        assert launcher.wait(60) == 130, said.decode()
    finally:
        launcher.kill()
        os.close(terminal)
    (folder,) = run_folders(tmp_path / "runs")
    told = said.decode().rpartition("SIGINT came. The processes have 300 seconds to save and end; Ctrl-C again ends")[2]
    way = (
        f"cadenza: interrupted: SIGINT came; the run is saved; `cadenza train {folder.relative_to(tmp_path)} --resume`"
    )
    assert way in told.replace("\r\n", "\n"), said.decode()
    assert read_run(folder).state == "interrupted"
    state = Shelf(folder / "checkpoints").read("last").state
    assert state["clock"]["epochs"] >= 1  # the live line counts the epoch that has begun
    assert state["ended"] is None


def part_of(terminal: int) -> bytes:
    """What was written meanwhile; nothing when the last process that has the terminal open is gone."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""
