"""``ablate``: what each callback of a recipe contributes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.commands.options import Allow, Imports, Overrides, RecipeName


def ablate(
    recipe: RecipeName,
    overrides: Overrides = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds, each for all variants.")] = 1,
    metric: Annotated[
        str | None, typer.Option("--metric", help="What is compared; else what the recipe states.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder for the table and the plot.")] = None,
    imports: Imports = None,
    allow: Allow = None,
) -> None:
    """Say what each callback contributes. Trains a recipe as it is and once without each of them."""
    from cadenza.cli.ablation import Ablation
    from cadenza.recipes import load

    found = load(recipe, overrides or (), imports=imports or (), allow=allow or ())
    ablation = Ablation(found, seeds, metric)
    ablation.run(typer.echo)
    typer.echo(ablation.table())
    for path in ablation.write(out or Path("ablations") / found.name):
        typer.echo(str(path))
