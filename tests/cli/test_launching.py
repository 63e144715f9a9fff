"""``cadenza launch``: a recipe in several processes, as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

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
