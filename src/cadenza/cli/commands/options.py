"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from cadenza.cli.commands.completion import complete_recipe, complete_run

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A ready recipe or a YAML file.", autocompletion=complete_recipe)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="OVERRIDES", help="Changes: fit.epochs=3, callbacks.ema.decay=0.99, ~callbacks.ema."),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="A module or file that registers your objects; repeatable."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="PACKAGE", help="A package that _target_ may name; repeatable."),
]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run: its folder, its id, or project/name.", autocompletion=complete_run)
]
Which = Annotated[str, typer.Option("--checkpoint", help="Which checkpoint: best, last, or a name.")]
Root = Annotated[str, typer.Option("--root", help="The folder of all runs.")]
