"""Arguments and options that several commands share, and what the shell offers for them when TAB is pressed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def complete_recipe(incomplete: str) -> list[str]:
    """Ready recipes, and YAML files that begin so."""
    ready = Path(__file__).parents[2] / "recipes" / "ready"
    names = [path.stem for path in sorted(ready.glob("*.yaml"))]
    folder = Path(incomplete).parent if incomplete else Path()
    files = [str(path) for path in sorted(folder.glob("*.y*ml"))] if folder.is_dir() else []
    return [name for name in [*names, *files] if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Folders of runs below ``runs``."""
    found = sorted(Path("runs").glob("*/*/*/status.json"), reverse=True)
    return [str(path.parent) for path in found if str(path.parent).startswith(incomplete)]


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
