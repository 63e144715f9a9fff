"""All runs in a table, and several runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cadenza.experiment.make_folder import FolderError
from cadenza.experiment.records import Record, RunName, read_run, run_folders
from cadenza.foundation.text_table import number, text_table


def list_runs(root: RunName = "runs") -> list[dict[str, Any]]:
    """A dict for each run below ``root``, the newest first: what it is, its state, how far it came, its best metric.

    >>> list_runs("no such folder")
    []
    """
    rows = []
    for folder in reversed(run_folders(root)):
        try:
            rows.append(_row(read_run(folder)))
        except FolderError:  # being made or being removed at this moment
            continue
    return rows


def _row(record: Record) -> dict[str, Any]:
    details, status = record.details, record.status
    best = record.headline()
    return {
        "folder": str(record.folder),
        "project": details["project"],
        "name": details["name"],
        "id": record.folder.name,
        "state": record.state,
        "created": details.get("created"),
        "epochs": status.get("epochs", 0),
        "steps": status.get("steps", 0),
        "seconds": status.get("seconds", 0.0),
        "metric": None if best is None else best[0],
        "value": None if best is None else best[1],
        "epoch": None if best is None else best[2].get("epoch"),
        "error": status.get("error"),
    }


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. Each row is a name and one value for each run; None where a run has none."""

    runs: list[str]
    settings: list[tuple[str, list[Any]]]
    """What was set differently."""
    metrics: list[tuple[str, list[Any]]]
    """The best value of each metric of epochs; of others the last."""
    facts: list[tuple[str, list[Any]]]
    """State, epochs, seconds, seed, commit."""

    def __str__(self) -> str:
        parts = []
        for title, rows in (("runs", self.facts), ("set differently", self.settings), ("metrics", self.metrics)):
            names = [f"[{index + 1}]" for index in range(len(self.runs))]
            shown = str if rows is self.settings else number  # what was set differently has to look different
            lines = [[name, *(_cell(value, shown) for value in values)] for name, values in rows] or [
                ["nothing", *[""] * len(names)]
            ]
            parts.append(text_table([title, *names], lines, left=1))
        listed = "\n".join(f"[{index + 1}] {run}" for index, run in enumerate(self.runs))
        return "\n\n".join([listed, *parts])


def _cell(value: Any, shown: Callable[[float], str]) -> str:
    return "" if value is None else shown(value) if isinstance(value, float) else str(value)


def compare_runs(runs: Sequence[RunName]) -> Comparison:
    """What differs between the runs in these folders, and how they did; print it, or take its rows."""
    if isinstance(runs, str) or len(runs) < 2:
        raise ValueError("compare_runs takes a list of two or more folders of runs")
    return compare_records([read_run(run) for run in runs])


def compare_records(records: Sequence[Record]) -> Comparison:
    settings = [record.settings for record in records]
    keys = list(dict.fromkeys(key for one in settings for key in one))
    values = [(key, [one.get(key) for one in settings]) for key in keys]
    return Comparison(
        runs=[record.label for record in records],
        settings=[(key, row) for key, row in values if any(value != row[0] for value in row)],
        metrics=_metrics(records),
        facts=_facts(records),
    )


def _metrics(records: Sequence[Record]) -> list[tuple[str, list[Any]]]:
    shown = [record.last() | {name: value for name, (value, _) in record.best().items()} for record in records]
    return [(name, [one.get(name) for one in shown]) for name in sorted({name for one in shown for name in one})]


def _facts(records: Sequence[Record]) -> list[tuple[str, list[Any]]]:
    facts: list[tuple[str, list[Any]]] = [("state", [record.state for record in records])]
    facts += [(name, [record.status.get(name) for record in records]) for name in ("epochs", "steps", "seconds")]
    facts.append(("seed", [record.details.get("seed") for record in records]))
    commits = [_commit(record) for record in records]
    return facts if all(commit is None for commit in commits) else [*facts, ("commit", commits)]


def _commit(record: Record) -> str | None:
    git = record.details.get("git")
    if not git:
        return None
    return str(git["commit"])[:10] + (" and changes" if git["changed"] else "")
