"""Which file or override said what, so that an error can name it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cadenza.foundation.tree import walk
from cadenza.recipes.compose.normalise import NAMED, TARGET, Lines, Path
from cadenza.recipes.errors import fold

_NOTHING = object()


@dataclass
class Layer:
    """One file, or one override, as part of the whole recipe."""

    name: str
    tree: dict[str, Any]
    lines: Lines = field(default_factory=dict)
    package: tuple[str, ...] = ()

    def value(self, path: Path) -> Any:
        """What this layer says at ``path`` of the whole recipe; a marker if nothing."""
        size = len(self.package)
        if path[:size] != self.package[: len(path)]:
            return _NOTHING
        branch: Any = self.tree
        for key in path[size:]:
            listed = isinstance(branch, list) and isinstance(key, int) and key < len(branch)
            if not listed and not (isinstance(branch, dict) and key in branch):
                return _NOTHING
            branch = branch[key]
        return branch

    def says(self, path: Path) -> bool:
        return self.value(path) is not _NOTHING

    def at(self, path: Path) -> str:
        own = path[len(self.package) :]
        while own and own not in self.lines:
            own = own[:-1]
        return f"{self.name}:{self.lines[own]}" if own else self.name


class Origins:
    """All layers of a recipe, those that were read first in front."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers

    def at(self, path: Path, value: Any = _NOTHING) -> str:
        """Where ``path`` was said: the last layer that gave this value, else that says anything there or above."""
        while path:
            told = [layer for layer in self.layers if layer.says(path)]
            equal = [layer for layer in told if value is not _NOTHING and layer.value(path) == value]
            if equal or told:
                return (equal or told)[-1].at(path)
            path, value = path[:-1], _NOTHING
        return self.layers[0].at(()) if self.layers else "the recipe"

    def drop_stale(self, tree: dict[str, Any]) -> None:
        """Takes out arguments that were meant for another object than the one that stands there in the end."""
        for path, node in list(_objects(tree)):
            target = fold(str(node.get(TARGET, path[-1])))
            others = [layer for layer in self.layers if _chooses_another(layer, path, target)]
            rest = [layer for layer in self.layers if layer not in others]
            for key in list(node):
                here = (*path, key)
                meant = any(layer.says(here) for layer in rest)
                if key != TARGET and not meant and any(layer.says(here) for layer in others):
                    del node[key]


def _objects(tree: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path, node in walk(tree, lambda one: one.items() if isinstance(one, dict) else None):
        if isinstance(node, dict) and (TARGET in node or (len(path) == 2 and path[0] in NAMED)):
            yield path, node


def _chooses_another(layer: Layer, path: Path, target: str) -> bool:
    """Whether this layer says what stands at ``path``, and says something else."""
    said = layer.value((*path, TARGET))
    return isinstance(said, str) and fold(said) != target
