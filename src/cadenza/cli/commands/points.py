"""``points`` and ``explain``: every point in order, and the callbacks of a recipe that run there."""

from __future__ import annotations

import typer

from cadenza.cli.commands.arguments import Allow, Imports, Overrides, RecipeName
from cadenza.cli.terminal import fitted, terminal_width


def points() -> None:
    """Print every point, in order, and what is true there."""
    typer.echo(fitted(points_text(), terminal_width()))


def explain(recipe: RecipeName, overrides: Overrides = None, imports: Imports = None, allow: Allow = None) -> None:
    """Print the score of a recipe. It says for every point who plays there, and in which order."""
    from cadenza.recipes import load

    found = load(recipe, overrides or (), imports=imports or (), allow=allow or ())
    typer.echo(fitted(found.build().trainer.explain(), terminal_width()))


def points_text() -> str:
    """The score as text, indented by span, what is true at each point beside it."""
    lines = points_outline()
    width = max(len(line) for line, _ in lines)
    return "\n".join(f"{line:<{width}}  {says}".rstrip() for line, says in lines)


def points_outline() -> list[tuple[str, str]]:
    """Each line of the score, indented by span, and what is true there."""
    from cadenza.points import EVENTS, POINTS, SPAN, Kind

    lines: list[tuple[str, str]] = []
    seen: set[str] = set()

    def visit(name: str, depth: int) -> None:
        span = SPAN[name]
        if name in seen:
            return lines.append(("  " * depth + f"({name} as above)", ""))
        seen.add(name)
        own = [point for point in POINTS.values() if point.span == name]
        for point in own:
            if point.kind is not Kind.AFTER and point.name != "on_lr_adjust":
                lines.append(("  " * depth + point.name, point.says))
        for inner in span.inside:
            visit(inner, depth + 1)
        for point in own:
            if point.name == "on_lr_adjust" or point.kind is Kind.AFTER:
                lines.append(("  " * depth + point.name, point.says))
        return None

    visit("run", 0)
    lines.append(("events", ""))
    lines.extend(("  " + name, says) for name, says in EVENTS.items())
    return lines
