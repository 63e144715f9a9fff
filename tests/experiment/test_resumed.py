"""With real checkpoints: a run that was interrupted at any step and resumed has the rows of one that was not."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from cadenza import Callback
from cadenza.callbacks import Checkpoint
from cadenza.experiment import CSV, Experiment, TensorBoard, list_runs, read_run
from cadenza.experiment.jsonl_file import read_lines
from cadenza.testing import tiny_loader

from .test_trackers import events
from .trained import At, EveryIteration, trainer_of


class Interrupted(Exception):
    pass


def fail(run: Any) -> None:
    raise Interrupted


def trained(experiment: Experiment, *more: Callback, epochs: int = 4, resume: Any = None) -> None:
    callbacks = [EveryIteration(), CSV(), TensorBoard(), Checkpoint("2 steps", background=False), *more]
    trainer = trainer_of(*callbacks, experiment=experiment, seed=0)
    trainer.fit(tiny_loader(shuffle=True), tiny_loader(9), epochs=epochs, resume=resume)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "clock_seconds"} for row in read_lines(folder / "metrics.jsonl")]


def table_of(folder: Path) -> list[list[str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("step", [3, 6, 8])
def test_a_resumed_run_has_the_rows_of_an_uninterrupted_one(tmp_path: Path, step: int) -> None:
    plain, cut = Experiment("tiny", "plain", tmp_path), Experiment("tiny", "cut", tmp_path)
    trained(plain)
    with pytest.raises(Interrupted):
        trained(cut, At("after_train_iter", fail, step))
    assert read_run(cut.folder).state == "failed"
    again = Experiment.at(cut.folder)
    trained(again, At("after_train_iter", lambda run: None), resume="auto")
    assert rows_of(again.folder) == rows_of(plain.folder)
    assert table_of(again.folder) == table_of(plain.folder)
    for name in ("val/loss", "train/loss", "train/loss_batch"):
        curves = [
            [(event.step, event.value) for event in events(one.tensorboard).Scalars(name)] for one in (again, plain)
        ]
        assert curves[0] == curves[1]
    assert read_run(again.folder).state == "finished"
    kinds = [event["kind"] for event in read_run(again.folder).events]
    assert kinds.count("resume") == 1
    assert "resumed at step" in again.report_file.read_text()


def test_tensorboard_reads_the_file_of_a_resumed_run_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard reads files in the order of their names. Those of one second and process end with a counter."""
    from tensorboard.summary.writer import event_file_writer

    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))
    experiment = Experiment("tiny", "quick", tmp_path)
    for epochs in (1, 2):
        trained(experiment, epochs=epochs, resume="auto")
        experiment = Experiment.at(experiment.folder)
    assert [event.step for event in events(experiment.tensorboard).Scalars("train/loss")] == [3, 6]


def test_a_run_that_is_resumed_in_another_folder_brings_its_rows(tmp_path: Path) -> None:
    first = Experiment("tiny", "first", tmp_path)
    trained(first, epochs=2)
    second = Experiment("tiny", "first", tmp_path)
    trained(second, epochs=4, resume=first.checkpoints)
    assert first.folder != second.folder
    assert [row["epoch"] for row in rows_of(second.folder) if row["kind"] == "epoch"] == [0, 1, 2, 3]
    assert len(list_runs(tmp_path)) == 2


def test_rows_of_an_attempt_that_left_no_checkpoint_do_not_count(tmp_path: Path) -> None:
    """Two attempts end early: one before its first checkpoint, the next with a checkpoint but without a row."""

    def attempt(experiment: Experiment, *more: Callback) -> Path:
        trainer = trainer_of(Checkpoint("1 step", background=False), *more, experiment=experiment, seed=0)
        trainer.fit(tiny_loader(shuffle=True), tiny_loader(9), epochs=2, resume="auto")
        return experiment.folder

    plain = attempt(Experiment("tiny", "plain", tmp_path))
    cut = Experiment("tiny", "cut", tmp_path)
    with pytest.raises(Interrupted):
        trainer_of(At("before_epoch", fail, 2), experiment=cut).fit(tiny_loader(), epochs=2)
    assert len(rows_of(cut.folder)) == 1
    with pytest.raises(Interrupted):
        attempt(Experiment.at(cut.folder), At("before_train_iter", fail, 2))
    attempt(Experiment.at(cut.folder))
    assert rows_of(cut.folder) == rows_of(plain)
    assert len(list(read_lines(cut.folder / "metrics.1.jsonl"))) == 1


def test_the_row_of_the_epoch_in_which_a_run_was_saved_is_brought_once(tmp_path: Path) -> None:
    class Early(Callback):
        """Begins the row of the epoch when the epoch begins."""

        def before_epoch(self, run: Any) -> None:
            run.log("number", run.epoch)

    plain, cut, other = (Experiment("tiny", "same", tmp_path) for _ in range(3))
    trained(plain, Early())
    with pytest.raises(Interrupted):
        trained(cut, Early(), At("after_train_iter", fail, 6))
    trained(other, Early(), At("after_train_iter", lambda run: None), resume=cut.checkpoints)
    for kind in ("epoch", "iter"):
        wanted = [row for row in rows_of(plain.folder) if row["kind"] == kind]
        assert [row for row in rows_of(other.folder) if row["kind"] == kind] == wanted
