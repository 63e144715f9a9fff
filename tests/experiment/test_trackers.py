"""Trackers, each against the real package writing to a local store."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import cadenza
from cadenza import Callback
from cadenza.callbacks import HistoryPlot
from cadenza.experiment import CSV, Experiment, MLflow, TensorBoard, Tracker, Trackio, WandB
from cadenza.experiment.jsonl_file import read_lines
from cadenza.testing import tiny_loader

from .saved import Restore, Save
from .trained import At, EveryIteration, fitted, trainer_of

RECIPE = {"optimizer": {"lr": 0.1}, "mail": {"password": "hunter2"}, "tags": ["a", "b"]}


def show(run: Any) -> None:
    run.experiment.image("image", torch.rand(3, 4, 4))
    run.experiment.histogram("weights", [1.0, 2.0, 2.0])
    run.experiment.text("note", "all is well")
    run.experiment.artifact(run.experiment.folder / "packages.txt")


def tracked(root: Path, tracker: Tracker, *more: Callback, **options: Any) -> Experiment:
    """A training of two epochs with three steps each, in which everything is shown once."""
    plot = HistoryPlot(every="end")
    return fitted(root, EveryIteration(), At("after_epoch", show), plot, tracker, *more, recipe=RECIPE, **options)


def resumed(root: Path, make: Any) -> tuple[Experiment, Tracker]:
    """A training of two epochs that is resumed from the end of the first, for two further ones."""
    experiment, tracker, saved = Experiment("tiny", "resumed", root), make(), {}
    first = trainer_of(EveryIteration(), tracker, Save(saved, experiment, tracker), experiment=experiment)
    first.fit(tiny_loader(), tiny_loader(9), epochs=2)
    again, tracker = Experiment.at(experiment.folder), make()
    second = trainer_of(EveryIteration(), tracker, Restore(saved, again, tracker), experiment=again)
    second.fit(tiny_loader(), tiny_loader(9), epochs=2)
    return again, tracker


def losses(experiment: Experiment, name: str = "val/loss") -> list[tuple[int, float]]:
    return [(row["step"], row[name]) for row in read_lines(experiment.metrics_file) if name in row]


# CSV ----------------------------------------------------------------------------------------------------------------


def table(experiment: Experiment) -> list[dict[str, str]]:
    with (experiment.folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_holds_all_rows_with_the_losses_of_the_history(tmp_path: Path) -> None:
    experiment = tracked(tmp_path, CSV())
    rows = table(experiment)
    assert [(int(row["step"]), float(row["val/loss"])) for row in rows if row["val/loss"]] == losses(experiment)
    assert [row["kind"] for row in rows] == ["iter"] * 3 + ["epoch"] + ["iter"] * 3 + ["epoch"]
    assert [bool(row["train/loss_batch"]) for row in rows] == [row["kind"] == "iter" for row in rows]


def test_csv_of_a_resumed_run_has_no_row_twice(tmp_path: Path) -> None:
    experiment, _ = resumed(tmp_path, CSV)
    rows = [(row["kind"], int(row["epoch"]), int(row["step"])) for row in table(experiment)]
    assert rows == [(row["kind"], row["epoch"], row["step"]) for row in read_lines(experiment.metrics_file)]
    assert [place for place in rows if place[0] == "epoch"] == [("epoch", 0, 3), ("epoch", 1, 6), ("epoch", 2, 9)]


def test_csv_goes_on_in_a_further_fit_and_keeps_the_file_of_another_training(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    trainer = trainer_of(CSV(path, rows="epoch"), experiment=Experiment("tiny", "first", tmp_path))
    trainer.fit(tiny_loader(), epochs=1)
    trainer.fit(tiny_loader(), epochs=1)
    assert len(path.read_text().splitlines()) == 3
    fitted(tmp_path, CSV(path, rows="epoch"), epochs=1)
    assert len(path.read_text().splitlines()) == 2
    assert len((tmp_path / "rows.1.csv").read_text().splitlines()) == 3


# TensorBoard --------------------------------------------------------------------------------------------------------


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0, "tensors": 0, "histograms": 0})
    found.Reload()
    return found


def test_tensorboard_gets_metrics_and_everything_shown(tmp_path: Path) -> None:
    experiment = tracked(tmp_path, TensorBoard())
    found = events(experiment.tensorboard)
    written = [(event.step, event.value) for event in found.Scalars("val/loss")]
    assert written == [(step, pytest.approx(value)) for step, value in losses(experiment)]
    assert [event.step for event in found.Scalars("train/loss_batch")] == [1, 2, 3, 4, 5, 6]
    assert [event.step for event in found.Scalars("train/loss")] == [3, 6]
    image = found.Images("image")[0]
    assert (image.width, image.height, image.step) == (4, 4, 3)
    assert image.encoded_image_string == (experiment.plots / "image-000003.png").read_bytes()
    assert found.Images("HistoryPlot")[0].encoded_image_string.startswith(b"\x89PNG")
    assert sum(found.Histograms("weights")[0].histogram_value.bucket) == 3
    assert b"all is well" in found.Tensors("note/text_summary")[0].tensor_proto.string_val[0]
    settings = found.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"optimizer.lr" in settings
    assert b"hunter2" not in settings


def test_tensorboard_of_a_resumed_run_hides_what_is_past_the_checkpoint(tmp_path: Path) -> None:
    experiment, _ = resumed(tmp_path, TensorBoard)
    found = events(experiment.tensorboard)
    assert len(list(experiment.tensorboard.iterdir())) == 2
    assert [event.step for event in found.Scalars("val/loss")] == [3, 6, 9]
    assert [event.step for event in found.Scalars("train/loss_batch")] == list(range(1, 10))
    assert b"resumed at step 3" in found.Tensors("resumed/text_summary")[0].tensor_proto.string_val[0]


# MLflow -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mlflow_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for all tests: to make one takes seconds."""
    return tmp_path_factory.mktemp("mlflow")


def mlflow_run(root: Path, name: str) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("tiny")
        runs = client.search_runs([experiment.experiment_id])
    (run,) = (run for run in runs if run.info.run_name.startswith(f"{name} "))
    return client, run


def test_mlflow_gets_metrics_parameters_and_everything_shown(mlflow_root: Path) -> None:
    experiment = tracked(mlflow_root, MLflow(), name="plain")
    client, run = mlflow_run(mlflow_root, "plain")
    assert run.info.status == "FINISHED"
    written = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "val/loss")]
    assert written == losses(experiment)
    assert len(client.get_metric_history(run.info.run_id, "train/loss_batch")) == 6
    assert run.data.params == {"optimizer.lr": "0.1", "mail.password": "***", "tags.0": "a", "tags.1": "b"}
    assert run.data.tags["cadenza.folder"] == str(experiment.folder)
    files = Path(run.info.artifact_uri.removeprefix("file://"))
    names = sorted(path.relative_to(files).as_posix() for path in files.rglob("*") if path.is_file())
    assert names == [
        "histograms/weights-000003.json", "images/HistoryPlot/history.png", "images/image/image-000003.png",
        "packages.txt", "texts/note-000003.txt",
    ]  # fmt: skip
    assert (files / "texts" / "note-000003.txt").read_text() == "all is well"


def test_mlflow_of_a_resumed_run_goes_on_in_the_same_run(mlflow_root: Path) -> None:
    resumed(mlflow_root, MLflow)
    client, run = mlflow_run(mlflow_root, "resumed")
    assert run.data.tags["cadenza.resumed_at_step"] == "3"
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "val/loss")]
    assert sorted(steps) == [3, 6, 6, 9]


def test_mlflow_says_how_a_run_ended(mlflow_root: Path) -> None:
    def fail(run: Any) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        fitted(mlflow_root, MLflow(), At("after_epoch", fail, 2), name="failing", epochs=3)
    _, run = mlflow_run(mlflow_root, "failing")
    assert run.info.status == "FAILED"
    fitted(mlflow_root, MLflow(rows="epoch"), At("after_step", lambda run: run.stop("now")), name="stopped")
    _, run = mlflow_run(mlflow_root, "stopped")
    assert run.info.status == "FINISHED"


# Weights & Biases ---------------------------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its service may take longer to start than the half minute that it is given."""
    monkeypatch.setenv("WANDB_X_SERVICE_WAIT", "200")


def records(folder: Path) -> Iterator[Any]:
    """What is in the file of an offline run."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    (path,) = folder.glob("*.wandb")
    store = DataStore()
    store.open_for_scan(str(path))
    try:
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            yield record
    finally:
        store.close()


def wait_for_end(folder: Path) -> None:
    """Its service writes the last records a moment after the run has ended; until then one may be there in part."""
    deadline = time.monotonic() + 60
    while not has_ended(folder):
        assert time.monotonic() < deadline, "the end of the run was never written"
        time.sleep(0.05)


def has_ended(folder: Path) -> bool:
    try:
        return any(record.WhichOneof("record_type") == "exit" for record in records(folder))
    except AssertionError:
        return False


def wandb_rows(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


@pytest.mark.usefixtures("patient")
def test_wandb_offline_gets_metrics_and_everything_shown(tmp_path: Path) -> None:
    experiment = tracked(tmp_path, WandB())
    (folder,) = (experiment.folder / "wandb").glob("offline-run-*")
    wait_for_end(folder)
    rows = wandb_rows(folder)
    assert [(row["_step"], row["val/loss"]) for row in rows if "val/loss" in row] == losses(experiment)
    assert [row["_step"] for row in rows if "train/loss_batch" in row] == [1, 2, 3, 4, 5, 6]
    (start,) = (one.run for one in records(folder) if one.WhichOneof("record_type") == "run")
    assert (start.project, start.run_id) == ("tiny", experiment.id)
    text = "".join(str(one) for one in records(folder))
    assert "optimizer.lr" in text
    assert "hunter2" not in text
    values = {name: value for row in rows for name, value in row.items()}
    kinds = {name.removesuffix("/_type"): value for name, value in values.items() if name.endswith("/_type")}
    assert kinds == {
        "image": "image-file", "HistoryPlot": "image-file", "weights": "histogram", "note": "table-file",
    }  # fmt: skip
    stored = folder / "files" / values["image/path"]
    assert stored.read_bytes() == (experiment.plots / "image-000003.png").read_bytes()
    assert "packages.txt" in text


@pytest.mark.usefixtures("patient")
def test_wandb_of_a_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    experiment, _ = resumed(tmp_path, WandB)
    folders = sorted((experiment.folder / "wandb").glob("offline-run-*"))
    assert {folder.name.rpartition(experiment.id)[1] for folder in folders} == {experiment.id}
    for folder in folders:
        wait_for_end(folder)
    steps = [[row["_step"] for row in wandb_rows(folder) if "val/loss" in row] for folder in folders]
    assert steps[-1][-1] == 9
    assert "resumed_at_step" in "".join(str(one) for one in records(folders[-1]))


# Trackio ------------------------------------------------------------------------------------------------------------

TRACKIO = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import torch
torch.set_num_threads(1)
from cadenza.experiment import Trackio
from tests.experiment.test_trackers import resumed, tracked
root = Path(sys.argv[1])
print(tracked(root, Trackio(), name="plain").folder)
print(resumed(root, Trackio)[0].folder)
"""


def test_trackio_gets_metrics_and_everything_shown(tmp_path: Path) -> None:
    """In a process of its own: the package reads where its store is when it is imported."""
    source, here = Path(cadenza.__file__).parents[1], Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(source), "TRACKIO_DIR": str(tmp_path / "store")}
    environment.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", HF_HOME=str(tmp_path / "hf"))
    command = [sys.executable, "-W", "ignore", "-c", TRACKIO, str(tmp_path / "runs"), str(here)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    plain, again = (Path(line) for line in done.stdout.split())  # nothing else is printed
    (file,) = (tmp_path / "store").glob("tiny*.db")
    with sqlite3.connect(file) as store:
        found = store.execute("select run_name, step, metrics from metrics order by id").fetchall()
        configs = store.execute("select run_name, config from configs").fetchall()
    store.close()
    rows = [(name, step, json.loads(metrics)) for name, step, metrics in found]
    first = [(step, row) for name, step, row in rows if name.startswith("plain ")]
    assert [(step, row["val/loss"]) for step, row in first if "val/loss" in row] == losses(Experiment.at(plain))
    kinds = {name: value["_type"] for _, row in first for name, value in row.items() if isinstance(value, dict)}
    assert kinds == {
        "image": "trackio.image", "HistoryPlot": "trackio.image", "weights": "trackio.histogram",
        "note": "trackio.markdown", "artifact/packages.txt": "trackio.markdown",
    }  # fmt: skip
    assert "hunter2" not in str(configs)
    assert "optimizer.lr" in str(configs)
    second = [(step, row) for name, step, row in rows if name == f"resumed {again.name}"]
    assert [step for step, row in second if "val/loss" in row] == [3, 6, 6, 9]
    assert [row["resumed_at_step"] for _, row in second if "resumed_at_step" in row] == [3]


# When they fail -----------------------------------------------------------------------------------------------------


class Shaky(Tracker):
    """Fails while ``down`` says so."""

    def __init__(self, down: Any, **options: Any) -> None:
        super().__init__(**options)
        self.down, self.taken, self.ended = down, [], []

    def log(self, row: dict[str, Any]) -> None:
        if self.down(self):
            raise ConnectionError("no route to https://me:hunter2@host")
        self.taken.append(row)

    def finish(self, state: str) -> None:
        self.ended.append(state)


def test_a_tracker_that_fails_warns_once_keeps_everything_and_says_so(tmp_path: Path) -> None:
    tracker = Shaky(lambda _: True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        experiment = fitted(tmp_path, EveryIteration(), tracker)
    said = [str(one.message) for one in caught if not issubclass(one.category, ResourceWarning)]  # left open elsewhere
    assert len(said) == 2
    assert "Shaky failed, the training goes on" in said[0]
    assert "hunter2" not in said[0]
    assert "could not send 8 things" in said[1]
    assert experiment.status == "finished"
    kept = [call["row"] for call in read_lines(experiment.folder / "unsent-shaky.jsonl")]
    assert [row["step"] for row in kept] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert [row["val/loss"] for row in kept if "val/loss" in row] == [value for _, value in losses(experiment)]


def test_what_could_not_be_sent_is_sent_in_order_when_it_works_again(tmp_path: Path) -> None:
    up = threading.Event()
    tracker = Shaky(lambda one: len(one.taken) == 1 and not up.is_set())
    with pytest.warns(UserWarning, match="failed, the training goes on") as caught:
        experiment = fitted(tmp_path, EveryIteration(), tracker, At("after_run", lambda run: up.set()))
    assert len(caught) == 1
    assert [row["step"] for row in tracker.taken] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert not (experiment.folder / "unsent-shaky.jsonl").exists()
    assert tracker.ended == ["finished"]


def test_one_that_failed_is_left_alone_and_tried_again_at_the_end(tmp_path: Path) -> None:
    calls: list[int] = []

    def down(tracker: Shaky) -> bool:
        calls.append(1)
        return len(calls) == 1

    tracker = Shaky(down, rows="epoch")
    with pytest.warns(UserWarning, match="goes on"):
        fitted(tmp_path, tracker, epochs=3)
    assert len(calls) == 4  # the first, and at the end all three
    assert [row["epoch"] for row in tracker.taken] == [0, 1, 2]


def test_one_that_cannot_even_start_stops_nothing(tmp_path: Path) -> None:
    class NoStart(Tracker):
        def start(self, opening: Any) -> None:
            raise OSError("no store")

    with pytest.warns(UserWarning, match="NoStart"):
        experiment = fitted(tmp_path, NoStart())
    assert len(list(read_lines(experiment.folder / "unsent-nostart.jsonl"))) == 2


def test_one_that_fails_at_the_end_stops_nothing(tmp_path: Path) -> None:
    class NoEnd(Shaky):
        def finish(self, state: str) -> None:
            raise OSError("no end")

    with pytest.warns(UserWarning, match="no end"):
        assert fitted(tmp_path, NoEnd(lambda _: False)).status == "finished"


def test_a_store_that_is_no_folder_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="TensorBoard"):
        experiment = fitted(tmp_path, TensorBoard(tmp_path / "file"))
    assert experiment.status == "finished"
    assert (experiment.folder / "unsent-tensorboard.jsonl").exists()


# All of them --------------------------------------------------------------------------------------------------------


def test_project_and_name_come_from_the_experiment_or_from_the_user(tmp_path: Path) -> None:
    openings: list[Any] = []

    class Opened(Tracker):
        def start(self, opening: Any) -> None:
            openings.append(opening)

        def log(self, row: dict[str, Any]) -> None: ...

    experiment = fitted(tmp_path, Opened())
    fitted(tmp_path, Opened(project="mine", run_name="own"))
    trainer_of(Opened()).fit(tiny_loader(), epochs=1)
    assert [(one.project, one.name) for one in openings] == [("tiny", "first"), ("mine", "own"), ("cadenza", "run")]
    assert (openings[0].folder, openings[0].id) == (experiment.folder, experiment.id)


def test_what_is_shown_before_the_first_row_is_sent_too(tmp_path: Path) -> None:
    experiment = fitted(tmp_path, At("before_run", show), TensorBoard())
    assert events(experiment.tensorboard).Images("image")[0].step == 0


@pytest.mark.parametrize("make", [CSV, TensorBoard, MLflow, WandB, Trackio])
def test_unknown_rows_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match='rows is "all", "epoch" or "iter"'):
        make(rows="some")


def test_a_package_that_is_missing_is_said_when_the_tracker_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cadenza.experiment.trackers.import_tracker.find_spec", lambda name: None)
    for make, package in ((TensorBoard, "tensorboard"), (MLflow, "mlflow"), (WandB, "wandb"), (Trackio, "trackio")):
        with pytest.raises(ImportError, match=f"needs the package {package}: pip install"):
            make()


def test_weights_are_the_same_with_and_without_trackers(tmp_path: Path) -> None:
    def weights(*callbacks: Callback) -> list[torch.Tensor]:
        trainer = trainer_of(EveryIteration(), *callbacks, seed=0)
        trainer.fit(tiny_loader(shuffle=True), epochs=2)
        return list(trainer.model.parameters())

    one, other = weights(), weights(CSV(tmp_path / "a.csv"), TensorBoard(tmp_path / "b"))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
