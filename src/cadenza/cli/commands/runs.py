"""``runs``, ``compare`` and ``report``: finding results again, and looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cadenza.cli.commands.arguments import Root, complete_run
from cadenza.cli.terminal import CommandError, UsageError, fitted, terminal_width

Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN", help="A run: its folder, its id, or project/name.", autocompletion=complete_run),
]
_HEAD = ["run", "state", "epochs", "steps", "best", "created"]


def runs(
    project: Annotated[str | None, typer.Argument(metavar="PROJECT", help="Only the runs of this project.")] = None,
    root: Root = "runs",
) -> None:
    """List the runs: where each stands, and its best metric."""
    typer.echo(runs_table(root, project, terminal_width()))


def compare(runs: Runs, root: Root = "runs") -> None:
    """Compare two or more runs. Shows what they set differently, and their metrics side by side."""
    from cadenza.experiment.records import find_run
    from cadenza.experiment.runs import compare_runs

    if len(runs) < 2:
        raise UsageError("compare takes two or more runs")
    typer.echo(str(compare_runs([find_run(run, root) for run in runs])))


def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; else report.html of the run.")] = None,
    root: Root = "runs",
) -> None:
    """Write the report of a run, as one HTML file. With several runs it compares them."""
    from cadenza.experiment.records import find_run
    from cadenza.experiment.report import write_report

    typer.echo(str(write_report([find_run(run, root) for run in runs], out)))


# The table of runs ----------------------------------------------------------------------------------------------------


def runs_table(root: str, project: str | None, width: int | None = None) -> str:
    """The runs below ``root``, the newest first; no wider than ``width``."""
    from cadenza.experiment.runs import list_runs
    from cadenza.recipes.errors import did_you_mean

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
    from cadenza.foundation.text_table import text_table

    for columns in (len(_HEAD), len(_HEAD) - 1):
        table = str(text_table(_HEAD[:columns], [row[:columns] for row in rows], left=2))
        if width is None or max(map(len, table.splitlines())) <= width:
            return table
    return fitted("\n".join(_on_two_lines(*row) for row in rows), width)


def _on_two_lines(run: str, state: str, epochs: str, steps: str, best: str, _: str) -> str:
    counts = [f"{count} {what}{'s' * (count != '1')}" for count, what in ((epochs, "epoch"), (steps, "step"))]
    return f"{run}\n  {', '.join([state, *counts, *([best] if best else [])])}"


def _row(row: dict[str, Any]) -> list[str]:
    from cadenza.foundation.text_table import number

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
