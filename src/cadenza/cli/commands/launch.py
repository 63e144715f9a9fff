"""``launch``: a training in several processes, on this machine, on Ray or on Spark."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from cadenza.cli.commands.train import train
from cadenza.cli.terminal import UsageError, invoke, typer_app

_RAY_ONLY = ("address", "storage", "restarts")


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
    options = {"address": address, "storage": storage, "restarts": restarts or None}
    code = launched(command, workers, on, {name: value for name, value in options.items() if value is not None})
    raise typer.Exit(code)


def launched(words: Sequence[str], workers: int, on: str, options: dict[str, Any]) -> int:
    """Runs the command in all processes; returns the exit code of rank 0, whose output alone is shown."""
    from cadenza.distributed import launch
    from cadenza.distributed.launchers import ENGINES

    if words[0] != "train":
        raise UsageError(f"launch starts train, not {words[0]!r}: cadenza launch --workers 2 train digits")
    if on not in ENGINES:
        raise UsageError(f"--on is one of {', '.join(ENGINES)}, not {on!r}")
    foreign = [name for name in _RAY_ONLY if name in options]
    if foreign and on != "ray":
        raise UsageError(f"--{foreign[0]} is for --on ray, not for {on}")
    code, said = launch(taking_part, list(words), on == "local", workers=workers, on=on, **options)
    sys.stdout.write(said)
    return int(code)


def taking_part(words: list[str], live: bool) -> tuple[int, str]:
    """One process: rank 0 writes to the terminal if it is there to see, else its output is kept and comes back."""
    from cadenza.distributed.world import World

    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) and "--resume" not in words:
        words = [*words, "--resume"]
    app = typer_app({"train": train})
    if live and World.detect().is_main:
        return invoke(app, words), ""
    with contextlib.redirect_stdout(io.StringIO()) as kept:
        code = invoke(app, words)
    return code, kept.getvalue()
