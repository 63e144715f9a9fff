"""``replay``: the step again at which a value was not finite any more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.commands.options import Allow, Imports


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file that NaNGuard wrote.")],
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="The recipe or run; else the run in whose folder FILE is.")
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option(
            "--trainer", metavar="file.py:function", help="A function without arguments that makes the trainer."
        ),
    ] = None,
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Play the step of a NaN again, and say whose it is. NaNGuard wrote it down when it found the NaN."""
    from cadenza.cli.replaying import replay_file, replay_recipe

    if trainer is not None:
        typer.echo(replay_file(file, trainer))
    else:
        typer.echo(replay_recipe(file, recipe, imports=imports or [], allow=allow or []))
