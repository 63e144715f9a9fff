"""``recipes``: the ready recipes, and the quality that each reaches."""

from __future__ import annotations

import typer

from cadenza.cli.terminal import fitted, terminal_width


def recipes() -> None:
    """List the ready recipes, and the quality that each reaches."""
    from cadenza.recipes.recipe import ready_recipes

    found = ready_recipes()
    width = max(len(name) for name in found)
    for name, said in found.items():
        line = f"{name:<{width}}  {said['about']}{_quality(said['reaches'])}"
        typer.echo(fitted(line, terminal_width()))


def _quality(stated: dict[str, object]) -> str:
    if "metric" not in stated:
        return ""
    bound = f"at least {stated['at_least']}" if "at_least" in stated else f"at most {stated.get('at_most')}"
    return f" ({stated['metric']} {bound})"
