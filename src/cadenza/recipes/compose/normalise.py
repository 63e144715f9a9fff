"""One form for what can be written in several.

``optimizer: adamw``, ``optimizer: {adamw: {lr: 0.1}}`` and ``optimizer: {_target_: adamw, lr: 0.1}`` say the same; the
last form is the one that overrides can address. Callbacks may be a list; as a mapping each is addressed by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cadenza.recipes.errors import RecipeError, fold
from cadenza.recipes.registries import registry
from cadenza.recipes.registry import snake

OBJECTS: Mapping[tuple[str, ...], str] = {
    ("model",): "model",
    ("loss",): "loss",
    ("optimizer",): "optimizer",
    ("scheduler",): "scheduler",
    ("data", "train"): "dataset",
    ("data", "val"): "dataset",
    ("data", "test"): "dataset",
    ("loaders", "train"): "loader",
    ("loaders", "val"): "loader",
    ("loaders", "test"): "loader",
}
"""Where one object stands, and of which kind it is."""

SEVERAL = {("optimizer",), ("scheduler",), ("data", "val"), ("data", "test")}
"""Where a mapping of names to objects may stand instead."""

NAMED: Mapping[str, str] = {"callbacks": "callback", "trackers": "tracker"}
"""Objects under names of their own, as a mapping or as a list."""

SECTIONS: Mapping[str, str] = {
    "about": "one sentence: what is trained on what",
    "reaches": "the quality it reaches: metric, and at_least or at_most",
    "imports": "files beside the recipe, or modules, that register your own objects",
    "seed": "the seed of all random numbers",
    "threads": "how many threads torch uses; null leaves it alone",
    "device": "auto, cpu, cuda, …",
    "strategy": "as of Trainer",
    "execution": "as of Trainer",
    "experiment": "the arguments of Experiment, or false for no folder",
    "model": "the model",
    "loss": "the loss",
    "optimizer": "the optimizer, or several under names",
    "scheduler": "a scheduler of torch, or several under names",
    "scheduler_every": "epoch or step: how often schedulers are stepped",
    "data": "the datasets: train, val, test",
    "loaders": "how they are loaded: train, val, test",
    "fit": "how far: epochs or steps, validate_every, log_every",
    "callbacks": "the callbacks, under names",
    "trackers": "the trackers of the experiment, under names",
}
"""The keys of a recipe."""

STAGES = ("train", "val", "test")
FIT = ("epochs", "steps", "validate_every", "log_every")
REACHES = ("metric", "at_least", "at_most")


Path = tuple[Any, ...]
Lines = dict[Path, int]
TARGET = "_target_"


class Normal:
    """The normal form of one file, with its lines moved along."""

    def __init__(self, tree: dict[str, Any], lines: Lines, file: str, package: tuple[str, ...] = ()) -> None:
        self.lines, self.file, self.package = dict(lines), file, package
        self.tree: dict[str, Any] = dict(tree)
        for path, kind in OBJECTS.items():
            self._replace(path, kind)
        for key, kind in NAMED.items():
            self._replace((key,), kind)

    def _replace(self, path: tuple[str, ...], kind: str) -> None:
        """Puts what stands at ``path`` of the whole recipe into its normal form, if this file says something there."""
        if path[: len(self.package)] != self.package or len(path) <= len(self.package):
            return
        *parents, last = path[len(self.package) :]
        branch: Any = self.tree
        for key in parents:
            if not isinstance(branch, dict) or not isinstance(branch.get(key), dict):
                return
            branch[key] = dict(branch[key])
            branch = branch[key]
        if isinstance(branch, dict) and last in branch:
            own = (*parents, last)
            if last in NAMED:
                branch[last] = self.named(branch[last], kind, own)
            else:
                branch[last] = self.one_or_several(branch[last], kind, own, several=path in SEVERAL)

    def one_or_several(self, value: Any, kind: str, path: Path, *, several: bool) -> Any:
        """``one``, or with ``several`` a mapping of names to such."""
        made = self.one(value, kind, path)
        unnamed = several and made is value and isinstance(value, dict) and TARGET not in value
        if not unnamed or not all(isinstance(inner, str | dict) for inner in value.values()):
            return made
        return {name: self.one(inner, kind, (*path, name)) for name, inner in value.items()}

    def one(self, value: Any, kind: str, path: Path) -> Any:
        """``value`` as a mapping with ``_target_``, if it is an object at all."""
        if isinstance(value, str) and "${" not in value:
            return {TARGET: value}
        if not isinstance(value, dict) or TARGET in value:
            return self._inner(value, kind, path)
        if len(value) == 1:
            ((name, arguments),) = value.items()
            if name in registry(kind) and (arguments is None or isinstance(arguments, dict)):
                self._move((*path, name), path)
                return self._inner({TARGET: name, **(arguments or {})}, kind, path)
        return value

    def named(self, value: Any, kind: str, path: Path) -> Any:
        """Callbacks or trackers as a mapping of names to arguments; ``false`` and null stay, and mean none."""
        if isinstance(value, list):
            return self._listed(value, kind, path)
        if not isinstance(value, dict):
            return value
        found: dict[str, Any] = {}
        for name, arguments in value.items():
            label = label_of(str(name), kind)
            if label in found:
                raise RecipeError(f"{self._at((*path, name))}: the {kind} {label!r} stands here twice")
            self._move((*path, name), (*path, label))
            if isinstance(arguments, str) and arguments and "${" not in arguments:
                arguments = {TARGET: arguments}
            found[label] = {} if arguments is None or arguments is True or arguments == "" else arguments
            if isinstance(found[label], dict):
                target = found[label].get(TARGET, label)
                found[label] = self._inner(found[label], kind, (*path, label), target)
        return found

    def _listed(self, items: list[Any], kind: str, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for index, item in enumerate(items):
            here = (*path, index)
            if isinstance(item, dict) and len(item) == 1 and TARGET not in item:
                ((name, arguments),) = item.items()
                self._move((*here, name), here)
            elif isinstance(item, dict) and isinstance(item.get(TARGET), str):
                name, arguments = item[TARGET], item
            else:
                name, arguments = item, None
            if not isinstance(name, str) or not (arguments is None or isinstance(arguments, dict)):
                raise RecipeError(
                    f"{self._at(here)}: {item!r} is no {kind}; write '- Name' or '- Name: {{argument: value}}'"
                )
            label = first = label_of(name.rpartition(".")[2], kind)
            number = 2
            while label in found:
                label, number = f"{first}_{number}", number + 1
            self._move(here, (*path, label))
            given = {TARGET: name, **(arguments or {})} if fold(label) != fold(name) else dict(arguments or {})
            found[label] = self._inner(given, kind, (*path, label), name)
        return found

    def _inner(self, value: Any, kind: str, path: Path, target: Any = None) -> Any:
        """The arguments of an object that are objects again, in their normal form too."""
        target = value.get(TARGET) if isinstance(value, dict) and target is None else target
        if not isinstance(value, dict) or not isinstance(target, str) or target not in registry(kind):
            return value
        given = dict(value)
        for argument, inner in registry(kind)[target].holds.items():
            if inner == "part":
                continue
            held, here = given.get(argument), (*path, argument)
            if isinstance(held, list):
                given[argument] = [self.one(one, inner, (*here, at)) for at, one in enumerate(held)]
            elif isinstance(held, dict) and argument.endswith("s") and TARGET not in held:
                given[argument] = {name: self.one(one, inner, (*here, name)) for name, one in held.items()}
            elif held is not None:
                given[argument] = self.one(held, inner, here)
        return given

    def _move(self, old: Path, new: Path) -> None:
        if old == new:
            return
        size = len(old)
        moved = {(*new, *path[size:]): self.lines.pop(path) for path in list(self.lines) if path[:size] == old}
        self.lines = {**moved, **{path: line for path, line in self.lines.items() if path not in moved}, **moved}

    def _at(self, path: Path) -> str:
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.file}:{self.lines[path]}" if path else self.file


def label_of(name: str, kind: str) -> str:
    """The name by which a callback is addressed: the registered one, else in small letters with underscores."""
    names = registry(kind)
    return names[name].name if name in names else snake(name)
