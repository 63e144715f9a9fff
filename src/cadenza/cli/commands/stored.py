"""``validate``, ``test`` and ``predict``: what a run left behind, used again."""

from __future__ import annotations

from typing import Annotated

import typer

from cadenza.cli.commands.options import Allow, Imports, Overrides, Root, RunName, Which


def validate(
    run: RunName,
    overrides: Overrides = None,
    checkpoint: Which = "best",
    root: Root = "runs",
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Measure a run's model on its validation data."""
    from cadenza.cli.trained import Trained

    trained = Trained.of(run, root, checkpoint, overrides or [], imports=imports or [], allow=allow or [])
    typer.echo(trained.measured("val"))


def measure_on_tests(
    run: RunName,
    overrides: Overrides = None,
    checkpoint: Which = "best",
    root: Root = "runs",
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Measure a run's model on its test data."""
    from cadenza.cli.trained import Trained

    trained = Trained.of(run, root, checkpoint, overrides or [], imports=imports or [], allow=allow or [])
    typer.echo(trained.measured("test"))


def predict(
    run: RunName,
    data: Annotated[str, typer.Argument(metavar="DATA", help="train, val or test; or a file of inputs: .pt, .npy.")],
    out: Annotated[str | None, typer.Option("--out", help="Where to write; else into the run's folder.")] = None,
    checkpoint: Which = "best",
    root: Root = "runs",
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Write a run's outputs for some data to a file, in order."""
    from cadenza.cli.trained import Trained

    trained = Trained.of(run, root, checkpoint, [], imports=imports or [], allow=allow or [])
    typer.echo(trained.predicted(data, out))
