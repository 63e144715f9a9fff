"""``ablate``: trains a recipe as it is, and once without each of its callbacks, from the same seeds."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.commands.arguments import Allow, Imports, Overrides, RecipeName
from cadenza.cli.terminal import CommandError

if TYPE_CHECKING:
    from cadenza.recipes import Recipe

WHOLE = "as it is"


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
    from cadenza.recipes import load

    found = load(recipe, overrides or (), imports=imports or (), allow=allow or ())
    ablation = Ablation(found, seeds, metric)
    ablation.run(typer.echo)
    typer.echo(ablation.table())
    for path in ablation.write(out or Path("ablations") / found.name):
        typer.echo(str(path))


@dataclass
class Variant:
    """A recipe with or without a callback, and what it reached with each seed."""

    name: str
    recipe: Recipe
    values: list[float] = field(default_factory=list)
    problem: str = ""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


class Ablation:
    """Trains all variants. Nothing is written until ``write``; the recipe's experiment, and what only shows or saves,
    is left out."""

    def __init__(self, recipe: Recipe, seeds: int, metric: str | None = None) -> None:
        self.left_out = [name for name, one in recipe.plan.callbacks.items() if _only_shows(one.thing)]
        for name in self.left_out:
            recipe = recipe.without(name)
        if not recipe.plan.callbacks:
            raise CommandError(f"{recipe.name} has no callbacks that could be left out")
        self.metric, self.mode = _metric(recipe, metric)
        first = recipe.plan.seed or 0
        self.seeds = list(range(first, first + seeds))
        self.variants = [Variant(WHOLE, recipe)]
        self.variants += [Variant(name, recipe.without(name)) for name in recipe.plan.callbacks]

    def run(self, say: Callable[[str], object]) -> None:
        """Trains every variant with every seed. A variant that cannot be trained is noted, and the others go on."""
        from cadenza.recipes.errors import did_you_mean

        if self.left_out:
            say(f"left out of all, since they only show or save: {', '.join(self.left_out)}")
        for variant in self.variants:
            for seed in self.seeds:
                if variant.problem:
                    break
                what = variant.name if variant.name == WHOLE else f"without {variant.name}"
                try:
                    history = variant.recipe.with_seed(seed).build().fit()
                except Exception as error:
                    if variant.name == WHOLE:
                        raise
                    variant.problem = f"cannot be trained without it: {str(error).splitlines()[0]}"
                    continue
                if self.metric not in history.names():
                    if variant.name == WHOLE:
                        raise CommandError(
                            f"nobody measures {self.metric!r}{did_you_mean(self.metric, history.names())}"
                        )
                    variant.problem = f"it measures {self.metric}"
                    continue
                variant.values.append(history[self.metric][-1])
                say(f"{what}, seed {seed}: {self.metric} {variant.values[-1]:.5g}")

    def contribution(self, variant: Variant) -> float:
        """How much better the recipe is with the callback; below 0 it does harm."""
        better = variant.mean - self.variants[0].mean
        return (better if self.mode == "min" else -better) + 0.0  # no minus before a zero

    def table(self) -> str:
        """One row for each variant, and below it why some could not be trained."""
        from cadenza.foundation.text_table import text_table

        wider = len(self.seeds) > 1
        rows, notes = [], []
        for variant in self.variants:
            if variant.problem:
                notes.append(f"{variant.name}: {variant.problem}")
                continue
            part = "" if variant.name == WHOLE else f"{self.contribution(variant):+.5g}"
            spread = [f"{variant.spread:.2g}"] if wider else []
            rows.append([variant.name, f"{variant.mean:.5g}", *spread, part])
        head = ["without", self.metric, *(["spread"] if wider else []), "contributes"]
        return "\n".join([str(text_table(head, rows, left=1)), *notes])

    def write(self, folder: Path) -> list[Path]:
        """Writes ``ablation.csv``, and ``ablation.png`` if matplotlib is there."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "ablation.csv"]
        with paths[0].open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["without", "metric", *(f"seed {seed}" for seed in self.seeds), "contributes", "problem"])
            for variant in self.variants:
                known = bool(variant.values) and not variant.problem
                part = self.contribution(variant) if known and variant.name != WHOLE else ""
                values = [*variant.values, *[""] * (len(self.seeds) - len(variant.values))]
                table.writerow([variant.name, self.metric, *values, part, variant.problem])
        return [*paths, *self._plot(folder / "ablation.png")]

    def _plot(self, path: Path) -> list[Path]:
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return []
        shown = [variant for variant in self.variants[1:] if not variant.problem]
        figure = Figure(figsize=(7, 1.2 + 0.4 * len(shown)), layout="constrained")
        axes = figure.add_subplot()
        parts = [self.contribution(variant) for variant in shown]
        axes.barh([variant.name for variant in shown], parts, xerr=[v.spread for v in shown], color="#4477aa")
        axes.axvline(0, color="#888888", linewidth=0.8)
        axes.invert_yaxis()
        many = f"{len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}"
        axes.set_xlabel(f"what it contributes to {self.metric} ({many})")
        figure.savefig(path, dpi=120)
        return [path]


def _only_shows(thing: Any) -> bool:
    """Whether a callback reports or saves, and so cannot change what is reached."""
    from cadenza.callback import Order

    order = getattr(thing, "order", None)
    return isinstance(order, int) and order >= Order.REPORT


def _metric(recipe: Recipe, asked: str | None) -> tuple[str, str]:
    from cadenza.callback import infer_mode

    if asked is not None:
        return asked, infer_mode(asked)
    if recipe.reaches is not None:
        return recipe.reaches[0], recipe.reaches[2]
    return ("val/loss" if "val" in recipe.plan.data else "train/loss"), "min"
