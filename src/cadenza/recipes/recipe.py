"""A recipe: read, checked, and ready to be built."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cadenza.recipes.building import Builder, Built
from cadenza.recipes.compose.files import READY, display, find_recipe, read_text, ready_names
from cadenza.recipes.errors import RecipeError
from cadenza.recipes.sections import Reader, RecipePlan
from cadenza.recipes.user_modules import import_module


class Recipe:
    """What a file says, with its defaults and overrides. Everything in it has been checked; nothing is built.

    >>> recipe = load("digits", ["fit.epochs=1", "~callbacks.progress"])
    >>> recipe.tree["fit"]["epochs"], sorted(recipe.plan.callbacks)
    (1, ['checkpoint', 'early_stopping', 'metrics', 'one_cycle_schedule'])
    """

    def __init__(
        self, file: Path, tree: dict[str, Any], written: dict[str, Any], plan: RecipePlan, origins: Any
    ) -> None:
        self.file, self.tree, self.written, self.plan, self.origins = file, tree, written, plan, origins

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def text(self) -> str:
        """The whole recipe as YAML, which trains to the same result. Secrets are masked."""
        from cadenza.experiment.secrets import masked
        from cadenza.recipes.compose.yaml_text import write_yaml

        return write_yaml(masked(self.written))

    @property
    def reaches(self) -> tuple[str, float, str] | None:
        """The metric whose value the recipe states, the value, and "min" or "max"."""
        stated = self.tree.get("reaches") or {}
        if "metric" not in stated:
            return None
        if stated.get("at_least") is not None:
            return stated["metric"], float(stated["at_least"]), "max"
        return stated["metric"], float(stated.get("at_most") or 0.0), "min"

    def build(self, *, experiment: Any = None) -> Built:
        """Model, data, callbacks and trainer. Nothing is written before the run begins."""
        return Builder(self.plan, self.origins).build(experiment)

    def without(self, callback: str) -> Recipe:
        """The same recipe without one of its callbacks."""
        callbacks = {name: one for name, one in self.plan.callbacks.items() if name != callback}
        if len(callbacks) == len(self.plan.callbacks):
            raise RecipeError(f"the recipe has no callback {callback!r}")
        return self._with(callbacks=callbacks)

    def with_seed(self, seed: int) -> Recipe:
        return self._with(seed=seed)

    def _with(self, **changes: Any) -> Recipe:
        return Recipe(self.file, self.tree, self.written, dataclasses.replace(self.plan, **changes), self.origins)


def load(
    recipe: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    imports: Iterable[str] = (),
    allow: Sequence[str] = (),
    stored: bool = False,
) -> Recipe:
    """Reads and checks a recipe: the name of a ready one or a file, with overrides such as ``"fit.epochs=3"``.

    ``imports`` are files or modules that register objects; ``allow`` are packages that ``_target_`` may name. A
    ``stored`` recipe is one that a run left behind: what it imports is not run unless it is given here again.
    """
    try:
        from cadenza.recipes.compose.compose import compose
        from cadenza.recipes.compose.defaults_tree import family
    except ModuleNotFoundError as error:
        raise RecipeError(f"recipes need {error.name}: pip install 'cadenza[cli]'") from error

    file = find_recipe(recipe)
    stored = stored or (file.parent / "run.json").is_file()
    again = list(imports)
    for name in again:
        _import(name, None)
    own = [(path.parent, name) for path, tree in family(file) for name in _imports(tree, path)]
    modules = [_import(name, folder) for folder, name in own] if not stored else []
    composed = compose(file, overrides)
    if stored:
        _refuse_imports(composed.tree, again, file)
    elif modules:
        _write_imports(composed.written, composed.tree, own)
    plan = Reader(composed.tree, composed.origins, _allowed(allow)).plan()
    return Recipe(file, composed.tree, composed.written, plan, composed.origins)


def _imports(tree: dict[str, Any], path: Path) -> list[str]:
    found = tree.get("imports") or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise RecipeError(f"{display(path)}: imports: {found!r} is not a list of files and modules")
    return found


def _import(name: str, beside: Path | None) -> Any:
    try:
        return import_module(name, beside)
    except RecipeError as error:
        raise RecipeError(f"imports: {error}" if beside else f"--import {name}: {error}") from None
    except Exception as error:
        raise RecipeError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _write_imports(written: dict[str, Any], tree: dict[str, Any], own: list[tuple[Path, str]]) -> None:
    """Files by their full path, so that a recipe that was printed and saved elsewhere still finds them."""
    full = [str((folder / name).resolve()) if name.endswith(".py") else name for folder, name in own]
    written["imports"] = tree["imports"] = list(dict.fromkeys(full))


def _refuse_imports(tree: dict[str, Any], again: list[str], file: Path) -> None:
    known = {Path(name).stem for name in again}
    for name in tree.get("imports") or []:
        if Path(str(name)).stem not in known:
            raise RecipeError(
                f"{display(file)}: imports: this recipe was stored with a run, and {name} is not run because a file "
                f"says so; if you trust it, say --import {name}"
            )


def _allowed(packages: Sequence[str]) -> list[str]:
    for package in packages:
        if not all(part.isidentifier() for part in package.split(".")):
            raise RecipeError(f"--allow {package}: this is not the name of a package")
    return list(packages)


def ready_recipes() -> dict[str, dict[str, Any]]:
    """The ready recipes by name, with what they say of themselves."""
    from cadenza.recipes.compose.yaml_text import read_yaml

    found = {}
    for name in ready_names():
        tree = read_yaml(read_text(READY / f"{name}.yaml"), name).tree
        found[name] = {"about": tree.get("about", ""), "reaches": tree.get("reaches", {})}
    return found
