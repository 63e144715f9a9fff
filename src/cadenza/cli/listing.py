"""All runs as a table."""

from __future__ import annotations

from typing import Any

from cadenza.callbacks.displays import number
from cadenza.callbacks.text_table import text_table
from cadenza.cli.errors import CommandError
from cadenza.experiment.runs import list_runs
from cadenza.recipes.errors import did_you_mean

_HEAD = ["run", "state", "epochs", "steps", "best", "created"]


def runs_table(root: str, project: str | None) -> str:
    """The runs below ``root``, the newest first."""
    found = list_runs(root)
    if not found:
        raise CommandError(f"there are no runs in {root}; `cadenza train RECIPE` makes one")
    own = [row for row in found if project in (None, row["project"], f"{row['project']}/{row['name']}")]
    if not own:
        known = {row["project"] for row in found}
        raise CommandError(f"there is no project {project!r} in {root}{did_you_mean(str(project), known)}")
    return str(text_table(_HEAD, [_row(row) for row in own], left=2))


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
