"""``runs``, ``compare`` and ``report``: finding results again, and looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.commands.completion import complete_run
from cadenza.cli.commands.options import Root

Runs = Annotated[
    list[str],
    typer.Argument(metavar="RUN", help="A run: its folder, its id, or project/name.", autocompletion=complete_run),
]


def runs(
    project: Annotated[str | None, typer.Argument(metavar="PROJECT", help="Only the runs of this project.")] = None,
    root: Root = "runs",
) -> None:
    """List the runs: where each stands, and its best metric."""
    from cadenza.cli.fitting import terminal_width
    from cadenza.cli.listing import runs_table

    typer.echo(runs_table(root, project, terminal_width()))


def compare(runs: Runs, root: Root = "runs") -> None:
    """Compare two or more runs. Shows what they set differently, and their metrics side by side."""
    from cadenza.cli.errors import UsageError
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
