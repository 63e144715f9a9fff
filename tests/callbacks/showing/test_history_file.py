"""HistoryFile: what is in the file at any time, read by other programs."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace

import pandas
import pytest
import torch
from tests.callbacks.drawn import Act, Oops, fitted, oops, trainer_with
from tests.callbacks.saving import Break
from tests.callbacks.saving import Oops as Broken
from tests.processes import run

import cadenza
from cadenza import Callback, Trainer
from cadenza.callbacks.checkpoint import Checkpoint
from cadenza.callbacks.showing.history_file import HistoryFile
from cadenza.callbacks.showing.progress import Progress
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.foundation.row_files import Table, json_line
from cadenza.testing import check_callback, tiny_loader


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows_of(path, delimiter=","):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


class Log(Callback):
    """Logs one value an epoch, or an iteration, from a certain epoch on."""

    def __init__(self, name, value=1.0, *, since=0, at="after_train_epoch"):
        self.metric, self.value, self.since, self.at = name, value, since, at
        self.name = f"Log {name}"

    def plays(self):
        return {self.at: self.play}

    def play(self, run):
        if run.epoch >= self.since:
            run.log(self.metric, self.value)


# What is written ------------------------------------------------------------------------------------------------------


def test_a_csv_file_reads_back_as_the_very_same_numbers():
    trainer = fitted(HistoryFile(), epochs=3)
    rows = rows_of("runs/history.csv")
    assert list(rows[0]) == ["epoch", "step", "batch", "train/loss", "val/loss"]
    assert [{"kind": "epoch", **{name: float(text) for name, text in row.items()}} for row in rows] == (
        trainer.history.epochs
    )
    frame = pandas.read_csv("runs/history.csv")
    assert list(frame.dtypes.astype(str)) == ["int64"] * 3 + ["float64"] * 2


def test_a_tsv_file_is_separated_by_tabs():
    trainer = fitted(HistoryFile("h.tsv"))
    assert [float(row["train/loss"]) for row in rows_of("h.tsv", "\t")] == trainer.history["train/loss"]


def test_a_jsonl_file_has_a_row_a_line_and_no_number_that_json_does_not_know():
    fitted(HistoryFile("h.jsonl"), Log("a", math.nan), Log("b", -math.inf))

    def refuse(constant):
        raise AssertionError(constant)

    rows = [json.loads(line, parse_constant=refuse) for line in Path("h.jsonl").read_text().splitlines()]
    assert [(row["epoch"], row["a"], row["b"]) for row in rows] == [(0, "NaN", "-Infinity"), (1, "NaN", "-Infinity")]
    assert json_line({"loss": 0.1}) == '{"loss": 0.1}'


def test_a_txt_file_is_to_be_read():
    fitted(HistoryFile("h.txt"), Log("a", 0.125))
    first, second = Path("h.txt").read_text().splitlines()
    assert first.startswith("epoch 1  step 3  batch 3  train/loss ")
    assert second.startswith("epoch 2  step 6  batch 6  train/loss ")
    assert "  a 0.1250" in second


def test_nan_is_written_in_csv_and_what_was_not_measured_is_empty():
    fitted(HistoryFile("h.csv"), Log("a", math.nan, since=1))
    assert [row["a"] for row in rows_of("h.csv")] == ["", "nan"]
    assert pandas.read_csv("h.csv")["a"].isna().all()


def test_a_column_that_appears_later_is_put_behind_the_others():
    trainer = fitted(HistoryFile("h.csv"), Log("late", 7.0, since=2), epochs=4)
    rows = rows_of("h.csv")
    assert list(rows[0]) == ["epoch", "step", "batch", "train/loss", "val/loss", "late"]
    assert [row["late"] for row in rows] == ["", "", "7.0", "7.0"]
    assert [float(row["val/loss"]) for row in rows] == trainer.history["val/loss"]


@pytest.mark.parametrize("kind", ["iter", "all"])
def test_rows_of_iterations_are_written_in_the_order_in_which_they_were_complete(kind):
    trainer = fitted(HistoryFile("h.jsonl", rows=kind), Log("x", torch.tensor(0.5), at="after_train_iter"))
    rows = [json.loads(line) for line in Path("h.jsonl").read_text().splitlines()]
    if kind == "all":
        assert [row.pop("kind") for row in rows] == (["iter"] * 3 + ["epoch"]) * 2
        rows = [row for row in rows if "stage" in row]
    expected = [{key: value for key, value in row.items() if key != "kind"} for row in trainer.history.iters]
    assert rows == expected


def test_rows_of_iterations_are_read_from_the_device_so_many_at_a_time(monkeypatch):
    lengths = []
    real = Table.append
    monkeypatch.setattr(Table, "append", lambda self, rows: (lengths.append(len(rows)), real(self, rows))[1])
    file = HistoryFile("h.csv", rows="iter", flush_every=4)
    trainer = trainer_with(file, Log("x", torch.tensor(0.5), at="after_train_iter"))
    trainer.fit(tiny_loader(48, batch_size=8), epochs=2)
    assert lengths == [4, 2, 4, 2]


def test_a_name_with_commas_quotes_and_umlauts_survives():
    fitted(HistoryFile("h.csv"), Log('a, "b" ü', 2.0))
    assert [row['a, "b" ü'] for row in rows_of("h.csv")] == ["2.0", "2.0"]


def test_files_go_to_the_experiment_if_there_is_one(tmp_path):
    fitted(HistoryFile(), experiment=SimpleNamespace(folder=tmp_path / "one"), epochs=1)
    assert (tmp_path / "one" / "history.csv").exists()


# When it is written ---------------------------------------------------------------------------------------------------


def test_a_row_is_there_as_soon_as_its_epoch_is_done():
    seen = []
    trainer = trainer_with(HistoryFile("h.csv"))
    trainer.on("before_epoch")(lambda run: seen.append(len(rows_of("h.csv")) if Path("h.csv").exists() else 0))
    trainer.fit(tiny_loader(), epochs=3)
    assert seen == [0, 1, 2]


def test_whole_rows_are_there_after_an_exception():
    logged = Log("x", torch.tensor(0.5), at="after_train_iter")
    with pytest.raises(Oops):
        fitted(HistoryFile("h.csv", rows="all"), logged, Act("after_train_epoch", oops))
    assert [row["kind"] for row in rows_of("h.csv")] == ["iter"] * 3


KILLED = """
import os, signal, sys, torch
import cadenza
from cadenza.callbacks.showing.history_file import HistoryFile
from cadenza.callbacks.showing.progress import Progress
from cadenza.testing import tiny_classifier, tiny_loader
model = tiny_classifier()
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[HistoryFile("h.csv")], device="cpu")
trainer.on("before_train_iter")(lambda run: os.kill(os.getpid(), signal.SIGKILL) if run.epoch == 3 else None)
trainer.fit(tiny_loader(), tiny_loader(), epochs=9)
"""


def test_whole_rows_are_there_when_the_process_is_killed(tmp_path):
    done = run(KILLED, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    text = Path("h.csv").read_text()
    assert text.endswith("\n")
    assert [row["epoch"] for row in rows_of("h.csv")] == ["0", "1", "2"]
    assert os.listdir(tmp_path) == ["h.csv"]


def test_a_disk_that_is_full_leaves_no_half_of_a_line(tmp_path, monkeypatch):
    table = Table(tmp_path / "h.csv", "csv")
    table.append([{"epoch": 0, "loss": 0.5}])
    before = table.path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.raises(OSError, match="no space left"):
        table.append([{"epoch": 1, "loss": 0.25}])
    assert table.path.read_bytes() == before


def test_a_second_fit_goes_on_in_the_same_file():
    trainer = fitted(HistoryFile("h.csv"), epochs=2)
    trainer.fit(tiny_loader(), epochs=2)
    assert [row["epoch"] for row in rows_of("h.csv")] == ["0", "1", "2", "3"]
    assert os.listdir(".") == ["h.csv"]


def test_a_resumed_fit_drops_what_it_does_again():
    fitted(HistoryFile("h.csv"), epochs=4)
    complete = Path("h.csv").read_text()
    first = fitted(epochs=2)
    resumed = Trainer(
        first.model, first._training.optimizers, torch.nn.CrossEntropyLoss(), callbacks=[HistoryFile("h.csv")],
        device="cpu",
    )  # fmt: skip
    resumed.history.load_state_dict(first.history.state_dict())
    resumed.clock.load_state_dict(first.clock.state_dict())
    resumed.fit(tiny_loader(), tiny_loader(20, seed=1), epochs=2)
    assert Path("h.csv").read_text() == complete


@pytest.mark.parametrize("point", ["after_train_iter", "after_val_iter"])
def test_a_resumed_fit_with_validations_in_mid_epoch_writes_the_very_same_file(point):
    def fit(name, *more):
        file = HistoryFile(f"{name}.csv", rows="all")
        callbacks = [Log("mine", at="after_train_iter"), file, Checkpoint("3 steps", to=name, background=False), *more]
        loaders = tiny_loader(40), tiny_loader(16)
        trainer_with(*callbacks).fit(*loaders, epochs=2, validate_every="2 steps", resume="auto")
        return Path(f"{name}.csv").read_text()

    whole = fit("whole")
    with pytest.raises(Broken):
        fit("broken", Break(point, 8 if point == "after_train_iter" else 7))
    assert Path("broken.csv").read_text() != whole
    assert fit("broken") == whole


@pytest.mark.skipif(os.name == "nt", reason="signals as on POSIX")
@pytest.mark.parametrize("kind", ["epoch", "iter", "all"])
def test_a_fit_resumed_from_a_save_in_validation_writes_no_row_twice(kind):
    """The row of the epoch is open in such a checkpoint: its training is done, its validation is not."""

    def fit(name, *more):
        file = HistoryFile(f"{name}.csv", rows=kind)
        callbacks = [Log("mine", at="after_train_iter"), file, Checkpoint(to=name, background=False), *more]
        trainer_with(*callbacks).fit(tiny_loader(), tiny_loader(16), epochs=3, resume="auto")
        return Path(f"{name}.csv").read_text()

    class Preempt(Callback):
        def after_val_iter(self, run):
            if run.epoch == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    whole, shown = fit("whole"), io.StringIO()
    with pytest.raises(cadenza.Preempted):
        fit("resumed", Preempt())
    assert fit("resumed", Progress("plain", stream=shown)) == whole
    assert re.search(r"epoch 2/3  .*train/loss .*val/loss", shown.getvalue())  # its line has the values of both passes


def test_the_file_of_another_training_is_kept():
    fitted(HistoryFile("h.csv"), epochs=1)
    first = Path("h.csv").read_text()
    fitted(HistoryFile("h.csv"), epochs=2)
    fitted(HistoryFile("h.csv"), epochs=3)
    assert Path("h.1.csv").read_text() == first
    assert len(rows_of("h.2.csv")) == 2
    assert len(rows_of("h.csv")) == 3


def test_validations_leave_no_row():
    trainer = fitted(HistoryFile("h.csv"), epochs=1)
    trainer.validate(tiny_loader())
    assert len(rows_of("h.csv")) == 1


# Around it ------------------------------------------------------------------------------------------------------------


def test_accumulation_skips_and_a_stop_leave_the_rows_of_the_history():
    trainer = fitted(
        HistoryFile("h.csv"),
        Accumulate(2),
        Act("before_train_iter", lambda run: run.skip_batch()),
        Act("after_val_epoch", lambda run: run.stop("enough")),
        epochs=3,
    )
    rows = rows_of("h.csv")
    assert [float(row["train/loss"]) for row in rows] == trainer.history["train/loss"]
    assert [int(row["step"]) for row in rows] == [row["step"] for row in trainer.history.epochs]


def test_a_failure_ends_the_run_with_its_name_or_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file") as caught:
        fitted(HistoryFile(tmp_path / "file" / "x.csv"))
    assert any("HistoryFile at after_log" in note for note in caught.value.__notes__)
    with pytest.warns(UserWarning, match="HistoryFile is switched off"):
        trainer = fitted(HistoryFile(tmp_path / "file" / "x.csv", on_error="warn"), epochs=3)
    assert trainer.clock.epochs == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "h.xlsx"}, "csv, tsv, jsonl, txt"),
        ({"path": "h"}, "csv, tsv, jsonl, txt"),
        ({"format": "parquet"}, "csv, tsv, jsonl, txt"),
        ({"path": "h.csv", "format": "tsv"}, "leave one of them out"),
        ({"rows": "batch"}, '"epoch", "iter" or "all"'),
        ({"flush_every": 0}, "at least 1"),
        ({"on_error": "stop"}, '"raise" or "warn"'),
        ({"path": 3}, "name of a file"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        HistoryFile(**options)


def test_it_changes_nothing():
    one, other = fitted(HistoryFile(rows="all")), fitted()
    assert one.history.to_rows() == other.history.to_rows()
    for mine, plain in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, plain)


def test_it_behaves_as_a_callback_should():
    check_callback(HistoryFile(rows="all", format="jsonl"))
