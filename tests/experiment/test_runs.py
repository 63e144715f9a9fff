"""Runs in a table, and side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadenza import Watch
from cadenza.cli.commands.runs import runs_table
from cadenza.experiment import FolderError, compare_runs, list_runs, read_run

from .trained import EveryIteration, fitted


def test_the_table_has_a_row_for_each_run_the_newest_first(tmp_path: Path) -> None:
    first = fitted(tmp_path, Watch("val/loss"), epochs=3)
    second = fitted(tmp_path, name="second", epochs=1)
    rows = {row["id"]: row for row in list_runs(tmp_path)}
    assert set(rows) == {first.id, second.id}
    row = rows[first.id]
    assert (row["project"], row["name"], row["state"]) == ("tiny", "first", "finished")
    assert (row["epochs"], row["steps"], row["metric"]) == (3, 9, "val/loss")
    losses = [one["val/loss"] for one in read_run(first.folder).epoch_rows]
    assert row["value"] == min(losses)
    assert rows[second.id]["metric"] == "val/loss"  # nobody watched, and validation says most
    assert [one["id"] for one in list_runs(tmp_path)] == [second.id, first.id]


def test_what_is_no_run_is_passed_over(tmp_path: Path) -> None:
    fitted(tmp_path, epochs=1)
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c" / "run.json").write_text("{")
    (tmp_path / "d" / "e" / "f").mkdir(parents=True)
    assert len(list_runs(tmp_path)) == 1


def test_a_folder_without_status_is_shown_as_unreadable(tmp_path: Path) -> None:
    experiment = fitted(tmp_path, epochs=1)
    (experiment.folder / "status.json").write_text("{}")
    assert list_runs(tmp_path)[0]["state"] == "unreadable"
    (experiment.folder / "status.json").unlink()
    assert list_runs(tmp_path)[0]["state"] == "unreadable"


def test_a_run_that_is_said_to_run_and_whose_process_is_gone_was_killed(tmp_path: Path) -> None:
    experiment = fitted(tmp_path, epochs=1)
    status = experiment.folder / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "state": "running"}))
    assert read_run(experiment.folder).state == "killed"


def test_a_list_of_runs_is_as_wide_as_the_terminal(tmp_path: Path) -> None:
    run = fitted(tmp_path, epochs=1).folder.name
    widest = {width: max(map(len, runs_table(str(tmp_path), None, width).splitlines())) for width in (None, 80, 60)}
    assert widest[None] > 80 >= widest[80] > 60 >= widest[60]
    assert "created" in runs_table(str(tmp_path), None)
    head, _, row = runs_table(str(tmp_path), None, 80).splitlines()
    assert head.split() == ["run", "state", "epochs", "steps", "best"]
    assert run in row
    first, second = runs_table(str(tmp_path), None, 60).splitlines()
    assert first.endswith(run)
    assert second.startswith("  finished, 1 epoch, 3 steps, ")


def test_runs_side_by_side(tmp_path: Path) -> None:
    recipe = {"optimizer": {"name": "sgd", "lr": 0.1}, "epochs": 2}
    one = fitted(tmp_path, recipe=recipe, seed=1).folder
    two = fitted(
        tmp_path, EveryIteration(), lr=0.01, recipe={**recipe, "optimizer": {"name": "sgd", "lr": 0.01}}
    ).folder
    found = compare_runs([one, two])
    assert found.settings == [("optimizer.lr", [0.1, 0.01])]
    metrics = dict(found.metrics)
    assert set(metrics) == {"train/loss", "val/loss"}
    assert metrics["val/loss"][0] < metrics["val/loss"][1]
    assert dict(found.facts)["seed"] == [1, None]
    text = str(found)
    assert "[1] tiny/first/" in text
    assert "optimizer.lr" in text


def test_without_a_recipe_what_the_run_itself_shows_is_compared(tmp_path: Path) -> None:
    one, two = fitted(tmp_path, lr=0.1).folder, fitted(tmp_path, lr=0.2, epochs=3).folder
    assert dict(compare_runs([one, two]).settings) == {"optimizer.lr": [0.1, 0.2], "epochs": [2, 3]}


def test_what_differs_in_the_last_digit_looks_different(tmp_path: Path) -> None:
    found = compare_runs([fitted(tmp_path, lr=lr, epochs=1).folder for lr in (0.1, 0.1000001)])
    assert [line.split() for line in str(found).splitlines() if "lr" in line] == [["optimizer.lr", "0.1", "0.1000001"]]


def test_one_run_is_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two or more"):
        compare_runs([tmp_path])
    with pytest.raises(FolderError, match="not the folder of a run"):
        compare_runs([tmp_path, tmp_path])
