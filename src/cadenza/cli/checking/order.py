# ruff: noqa: N815 - the names of the visit methods are Python's
"""Going through a function in the order in which it is executed, and what stands around each place."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from cadenza.cli.checking.names import last_name

_EXPECTS = ("suppress", "raises", "assertRaises", "assertRaisesRegex")
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class InOrder(ast.NodeVisitor):
    """Python's own visitor goes by the fields of the syntax, in which a target comes before the value it gets."""

    def __init__(self) -> None:
        self.caught: list[ast.expr | None] = []
        """What the ``try`` statements around this place catch; None catches everything."""
        self.conditions = 0
        """How many conditions decide whether this place is reached."""
        self.cleaning_up = 0
        """How many ``except`` and ``finally`` are around this place."""

    def is_caught(self, error: type[Exception]) -> bool:
        return any(_catches(expression, error) for expression in self.caught)

    def visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    @contextmanager
    def _count(self, name: str) -> Iterator[None]:
        setattr(self, name, getattr(self, name) + 1)
        yield
        setattr(self, name, getattr(self, name) - 1)

    @contextmanager
    def _catching(self, expressions: Iterable[ast.expr | None]) -> Iterator[None]:
        before = len(self.caught)
        self.caught += expressions
        yield
        del self.caught[before:]

    def visit_If(self, node: ast.If | ast.IfExp | ast.While) -> None:
        self.visit(node.test)
        with self._count("conditions"):
            for part in (node.body, node.orelse):
                self.visit_all(part if isinstance(part, list) else [part])
        if isinstance(node, ast.If) and any(isinstance(inner, _LEAVES) for inner in ast.walk(node)):
            self.conditions += 1  # what follows is reached only if it was not left here

    visit_IfExp = visit_If

    def visit_While(self, node: ast.While) -> None:
        self.visit_If(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        with self._count("conditions"):
            self.visit_all(node.values[1:])

    def visit_match_case(self, node: ast.match_case) -> None:
        with self._count("conditions"):
            self.generic_visit(node)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit_all([node.iter, node.target, *node.body, *node.orelse])

    visit_AsyncFor = visit_For

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        self.visit_all([*node.generators, node.elt])

    visit_SetComp = visit_GeneratorExp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self.visit_all([*node.generators, node.key, node.value])

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit_all([node.iter, node.target, *node.ifs])

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        with self._catching(handler.type for handler in node.handlers):
            self.visit_all(node.body)
        with self._count("cleaning_up"):
            self.visit_all(node.handlers)
        self.visit_all(node.orelse)
        with self._count("cleaning_up"):
            self.visit_all(node.finalbody)

    visit_TryStar = visit_Try

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        self.visit_all(node.items)
        with self._catching(expression for item in node.items for expression in _expected(item.context_expr)):
            self.visit_all(node.body)

    visit_AsyncWith = visit_With


def _expected(expression: ast.expr) -> list[ast.expr]:
    """The errors that ``with suppress(...)`` and its like let pass."""
    if not isinstance(expression, ast.Call) or last_name(expression) not in _EXPECTS:
        return []
    return expression.args if last_name(expression) == "suppress" else expression.args[:1]


def _catches(expression: ast.expr | None, error: type[Exception]) -> bool:
    """Whether ``except expression`` catches ``error``. What is no exception of Python's own perhaps does."""
    if isinstance(expression, ast.Tuple):
        return any(_catches(element, error) for element in expression.elts)
    known = getattr(builtins, last_name(expression), None) if expression is not None else None
    return issubclass(error, known) if isinstance(known, type) else True
