"""All runs as a table."""

from __future__ import annotations

from typing import Any

from cadenza.cli.errors import CommandError
from cadenza.cli.fitting import fitted
from cadenza.experiment.runs import list_runs
from cadenza.foundation.text_table import number, text_table
from cadenza.recipes.errors import did_you_mean

_HEAD = ["run", "state", "epochs", "steps", "best", "created"]


def runs_table(root: str, project: str | None, width: int | None = None) -> str:
    """The runs below ``root``, the newest first; no wider than ``width``."""
    found = list_runs(root)
    if not found:
        raise CommandError(f"there are no runs in {root}; `cadenza train RECIPE` makes one")
    own = [row for row in found if project in (None, row["project"], f"{row['project']}/{row['name']}")]
    if not own:
        known = {row["project"] for row in found}
        raise CommandError(f"there is no project {project!r} in {root}{did_you_mean(str(project), known)}")
    return _as_wide_as([_row(row) for row in own], width)


def _as_wide_as(rows: list[list[str]], width: int | None) -> str:
    """A table; if that is too wide one without the last column, as an id begins with the time; else two lines a run."""
    for columns in (len(_HEAD), len(_HEAD) - 1):
        table = str(text_table(_HEAD[:columns], [row[:columns] for row in rows], left=2))
        if width is None or max(map(len, table.splitlines())) <= width:
            return table
    return fitted("\n".join(_on_two_lines(*row) for row in rows), width)


def _on_two_lines(run: str, state: str, epochs: str, steps: str, best: str, _: str) -> str:
    counts = [f"{count} {what}{'s' * (count != '1')}" for count, what in ((epochs, "epoch"), (steps, "step"))]
    return f"{run}\n  {', '.join([state, *counts, *([best] if best else [])])}"


def _row(row: dict[str, Any]) -> list[str]:
    best = "" if row["metric"] is None else f"{row['metric']} {number(row['value'])}"
    created = str(row["created"] or "")[:19].replace("T", " ")
    return [
        f"{row['project']}/{row['name']}/{row['id']}",
        row["state"],
        str(row["epochs"]),
        str(row["steps"]),
        best,
        created,
    ]
