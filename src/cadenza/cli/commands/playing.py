"""``explain``: the score of a recipe."""

from __future__ import annotations

import typer

from cadenza.cli.commands.options import Allow, Imports, Overrides, RecipeName


def explain(recipe: RecipeName, overrides: Overrides = None, imports: Imports = None, allow: Allow = None) -> None:
    """Print the score of a recipe. It says for every point who plays there, and in which order."""
    from cadenza.cli.fitting import fitted, terminal_width
    from cadenza.recipes import load

    found = load(recipe, overrides or (), imports=imports or (), allow=allow or ())
    typer.echo(fitted(found.build().trainer.explain(), terminal_width()))
