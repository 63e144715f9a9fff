"""Which classes of a file are callbacks of ours, and what they are made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import cadenza
from cadenza.callback import Callback
from cadenza.cli.checking.names import Method, Names, stays_a_function


@dataclass(frozen=True)
class Family:
    """A class and all that it derives from, as far as the file tells."""

    node: ast.ClassDef
    inside: tuple[ast.ClassDef, ...]
    """Itself and its bases in this file, in the order in which a method is looked for."""
    paths: tuple[str, ...]
    """Bases that were imported, by their dotted path."""
    unknown: bool
    """Whether there is a base of which nothing is known."""
    methods: dict[str, tuple[ast.ClassDef, Method]]
    """By name the method that is called, and the class that has it."""

    @property
    def is_callback(self) -> bool:
        return any(is_callback_path(path) for path in self.paths)

    @property
    def may_be_main(self) -> bool:
        """Whether it derives from ``MainCallback``, or from something that perhaps does."""
        return self.unknown or any(path.rsplit(".", 1)[-1] != "Callback" for path in self.paths)

    @property
    def is_main(self) -> bool:
        return any(is_callback_path(path) and path.endswith("MainCallback") for path in self.paths)


def is_callback_path(path: str) -> bool:
    """Whether the name at this path is a callback class of the library. A dialect's callbacks speak another language.

    >>> is_callback_path("cadenza.Callback"), is_callback_path("lightning.Callback")
    (True, False)
    """
    package, *between = path.split(".")
    name = between.pop() if between else ""
    if package != "cadenza" or "dialects" in between:
        return False
    if name.endswith("Callback") or ("callbacks" in between and name[:1].isupper()):
        return True
    found = None if between else getattr(cadenza, name, None)
    return isinstance(found, type) and issubclass(found, Callback)


def families(names: Names) -> list[Family]:
    """Every class of the file with its bases."""
    return [_family(node, names) for node in names.all(ast.ClassDef) if isinstance(node, ast.ClassDef)]


def _family(node: ast.ClassDef, names: Names) -> Family:
    inside: dict[ast.ClassDef, None] = {}
    paths: dict[str, None] = {}
    unknown = False
    todo = [node]
    while todo:
        current = todo.pop(0)
        if current in inside:
            continue
        inside[current] = None
        here: list[ast.ClassDef] = []
        for base in current.bases:
            meaning = names.meaning(base, names.scope_of[current])
            if meaning and isinstance(meaning.node, ast.ClassDef):
                here.append(meaning.node)
            elif meaning and meaning.path:
                paths[meaning.path] = None
            elif not (isinstance(base, ast.Name) and base.id == "object"):
                unknown = True
        todo[:0] = here
    found = {name: (cls, method) for cls in reversed(inside) for name, method in methods(cls).items()}
    return Family(node, tuple(inside), tuple(paths), unknown, found)


def methods(node: ast.ClassDef) -> dict[str, Method]:
    """The functions of a class body. One whose name is assigned to, or that a decorator may change, is left out."""
    found: dict[str, Method] = {}
    for statement in _statements(node.body):
        if isinstance(statement, Method):
            found[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.Delete):
            for name in ast.walk(statement):
                if isinstance(name, ast.Name) and not isinstance(name.ctx, ast.Load):
                    found.pop(name.id, None)
    return {name: method for name, method in found.items() if stays_a_function(method)}


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    todo = list(body)
    while todo:
        statement = todo.pop(0)
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            todo[:0] = [inner for part in ("body", "orelse", "finalbody") for inner in getattr(statement, part, ())]
