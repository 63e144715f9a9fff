"""Which class or function a name in a recipe stands for, and which are allowed."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cadenza.recipes.errors import RecipeError, UnknownName, did_you_mean
from cadenza.recipes.registries import PARTS as PART_NAMES
from cadenza.recipes.registries import REGISTRIES, registry
from cadenza.recipes.registry import Entry, Registry

PARTS = Registry("part", lambda: PART_NAMES)


@dataclass(frozen=True)
class Target:
    """What a name stands for."""

    name: str
    thing: Any
    holds: Mapping[str, str] = field(default_factory=dict)


def resolve(name: str, kind: str | None, allowed: Sequence[str] = ()) -> Target:
    """The object under a registered name, or at a dotted path that is registered or in an allowed package.

    >>> resolve("adamw", "optimizer").thing is resolve("torch.optim.AdamW", None).thing
    True
    """
    kind = None if kind == "part" else kind
    entry = _registered(name, kind)
    if entry is not None:
        return Target(entry.name, _loaded(entry), entry.holds)
    if "." not in name:
        if kind is None:
            raise UnknownName(f"there is nothing registered as {name!r}{did_you_mean(name, _all_names())}")
        registry(kind)[name]  # raises, with the nearest name
    return Target(name.rpartition(".")[2], _from_package(name, kind, allowed))


def _registered(name: str, kind: str | None) -> Entry | None:
    kinds = [*REGISTRIES.values(), PARTS] if kind is None else [registry(kind)]
    for names in kinds:
        if name in names:
            return names[name]
    if "." not in name:
        return None
    every = [entry for names in [*REGISTRIES.values(), PARTS] for entry in names.entries()]
    return next((entry for entry in every if entry.path == name), None)


def _all_names() -> list[str]:
    return [name for names in [*REGISTRIES.values(), PARTS] for name in names]


def _loaded(entry: Entry) -> Any:
    try:
        return entry.load()
    except ImportError as error:
        raise RecipeError(f"{entry.name!r} needs a package that is not installed: {error}") from error


def _from_package(name: str, kind: str | None, allowed: Sequence[str]) -> Any:
    package = next((one for one in allowed if name.startswith(f"{one}.")), None)
    if package is None:
        top = name.partition(".")[0]
        near = did_you_mean(name.rpartition(".")[2], registry(kind), "or register it") if kind else ""
        raise RecipeError(f"_target_ {name!r} is neither registered nor in a package you allow (--allow {top}){near}")
    parts = name.split(".")
    for size in range(len(parts) - 1, 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise RecipeError(f"_target_ {name!r} needs a package that is not installed: {error}") from error
            continue
        for part in parts[size:]:
            known = dir(thing)
            if not hasattr(thing, part):
                raise RecipeError(f"_target_ {name!r}: there is no {part!r}{did_you_mean(part, known)}")
            thing = getattr(thing, part)
        return _owned(name, thing, package)
    raise RecipeError(f"_target_ {name!r}: there is no module {parts[0]!r}")


def _owned(name: str, thing: Any, package: str) -> Any:
    """Refuses what merely passes by in a package: ``package.os.system`` is not the package's."""
    home = str(getattr(thing, "__module__", "") or "")
    if inspect.ismodule(thing) or not callable(thing):
        raise RecipeError(f"_target_ {name!r} is neither a class nor a function")
    if home != package and not home.startswith(f"{package}."):
        raise RecipeError(
            f"_target_ {name!r} is of {home or 'another package'}, which is not allowed (--allow {package})"
        )
    return thing
