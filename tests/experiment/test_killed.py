"""A run that is killed leaves a folder that reads."""

from __future__ import annotations

import contextlib
import csv
import os
import sqlite3
import time
from pathlib import Path

import pytest

from cadenza.experiment import Experiment, compare_runs, list_runs, read_run, write_report
from cadenza.experiment.jsonl_file import read_lines
from cadenza.testing import tiny_loader

from ..processes import Program
from .test_trackers import mlflow_run, wandb_rows
from .trained import EveryIteration, fitted, trainer_of

pytestmark = pytest.mark.timeout(300)
CODE = """
import sys
import torch
torch.set_num_threads(1)
from cadenza.experiment import CSV, Report, TensorBoard
from tests.experiment.trained import At, EveryIteration, fitted
fitted(sys.argv[1], EveryIteration(), CSV(), TensorBoard(), Report(), At("after_log", lambda run: None), epochs=100000)
"""


@pytest.mark.skipif(os.name == "nt", reason="killed as on POSIX")
def test_kill_9_in_the_middle_leaves_a_readable_folder(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    process = Program(CODE, tmp_path)
    try:
        folder = wait_for_epochs(process, tmp_path, 6)  # five rows: an epoch is counted before its row is written
        assert list_runs(tmp_path)[0]["state"] == "running"
        write_report(folder, tmp_path / "while_running.html")
    finally:
        process.kill()
    (row,) = list_runs(tmp_path)
    assert row["state"] == "killed"
    assert row["epochs"] >= 6
    assert row["metric"] == "val/loss"
    assert row["value"] > 0
    page = write_report(folder).read_text()
    assert "killed after" in page
    assert "the process is gone and did not say why" in page
    rows = list(read_lines(folder / "metrics.jsonl"))
    assert [one["epoch"] for one in rows if one["kind"] == "epoch"][:5] == [0, 1, 2, 3, 4]
    with (folder / "metrics.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) >= 20
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert len(events.Scalars("val/loss")) >= 5
    finished = fitted(tmp_path, name="other").folder
    assert "killed" in str(compare_runs([folder, finished]))
    go_on(folder)


def wait_for_epochs(process: Program, root: Path, epochs: int) -> Path:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        assert process.is_alive(), process.errors
        for row in list_runs(root):
            if row["epochs"] >= epochs:
                return Path(row["folder"])
        time.sleep(0.2)
    raise AssertionError("the run did not come so far")


def go_on(folder: Path) -> None:
    """Another run may have the folder at once."""
    experiment = Experiment.at(folder)
    trainer_of(EveryIteration(), experiment=experiment).fit(tiny_loader(), epochs=1)
    assert read_run(folder).state == "finished"


SERVICES = """
import sys
import torch
torch.set_num_threads(1)
from cadenza.experiment import MLflow, Trackio, WandB
from tests.experiment.trained import fitted
fitted(sys.argv[1], MLflow(), WandB(), Trackio(), epochs=100000)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.name == "nt", reason="killed as on POSIX")
def test_kill_9_leaves_what_services_stored(tmp_path: Path) -> None:
    places = {"TRACKIO_DIR": str(tmp_path / "store"), "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    process = Program(SERVICES, tmp_path / "runs", env={**os.environ, **places})
    try:
        folder = wait_for_epochs(process, tmp_path / "runs", 1)
        wait_for_rows(process, tmp_path, folder)
    finally:
        process.kill()
    _, run = mlflow_run(tmp_path / "runs", "first")
    assert run.data.metrics["val/loss"] > 0
    assert rows_of(next((tmp_path / "store").glob("tiny*.db"))) > 0
    (offline,) = (folder / "wandb").glob("offline-run-*")
    assert any("val/loss" in row for row in wandb_rows(offline))


def wait_for_rows(process: Program, root: Path, folder: Path) -> None:
    """Waits until all three services have stored something. They are slower than the run, which waits for none."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.is_alive(), process.errors
        with contextlib.suppress(
            StopIteration, sqlite3.Error, ValueError, OSError, AssertionError
        ):  # not there yet, or half a row
            offline = next((folder / "wandb").glob("offline-run-*"))
            by_wandb = any("val/loss" in row for row in wandb_rows(offline))  # it holds rows back, 32 kB or so
            trackio = next((root / "store").glob("tiny*.db"))
            if by_wandb and rows_of(trackio) and rows_of(root / "runs" / "mlflow.db"):
                return
        time.sleep(0.5)
    raise AssertionError("the services did not store anything")


def rows_of(database: Path) -> int:
    """How many values are in its table of metrics."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        return int(store.execute("select count(*) from metrics").fetchone()[0])
