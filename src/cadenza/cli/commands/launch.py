"""``launch``: a training in several processes, on this machine, on Ray or on Spark."""

from __future__ import annotations

from typing import Annotated

import typer

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""What stands behind the command that is launched belongs to it."""


def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="What each process does: train, with its arguments.")
    ],
    workers: Annotated[int, typer.Option("--workers", min=1, help="How many processes.")] = 2,
    on: Annotated[str, typer.Option("--on", help="Who starts them: local, ray or spark.")] = "local",
    address: Annotated[str | None, typer.Option("--address", help="A Ray cluster; else Ray is started here.")] = None,
    storage: Annotated[str | None, typer.Option("--storage", help="Where Ray keeps metrics and checkpoints.")] = None,
    restarts: Annotated[int, typer.Option("--restarts", min=0, help="How often Ray starts dead workers again.")] = 0,
) -> None:
    """Train in several processes. For example: cadenza launch --workers 2 --on ray train digits"""
    from cadenza.cli.launching import launched

    options = {"address": address, "storage": storage, "restarts": restarts or None}
    code = launched(command, workers, on, {name: value for name, value in options.items() if value is not None})
    raise typer.Exit(code)
