"""What a name in a file stands for, as far as its text tells, and which names a run has."""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from inspect import isfunction
from typing import Literal, TypeAlias

from cadenza.engine.run_names import meant_by
from cadenza.run import Run

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_OPENS_A_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_UNBOUND_BUT_PLAIN = ("Callback", "MainCallback")


@dataclass(frozen=True)
class Meaning:
    """The dotted path of something imported, or the node that made the name: a definition, a value, a parameter."""

    scope: Scope
    path: str = ""
    node: ast.AST | None = None
    line: int = 0


@dataclass(eq=False)
class Scope:
    """The names of one module, class or function."""

    outer: Scope | None = None
    of_class: bool = False
    meanings: dict[str, list[Meaning]] = field(default_factory=dict)

    def bind(self, name: str, node: ast.AST, path: str = "", value: ast.AST | None = None) -> None:
        self.meanings.setdefault(name, []).append(Meaning(self, path, value, getattr(node, "lineno", 0)))


class Names:
    """All names of a file by scope. Where the text leaves a doubt, a name means nothing.

    >>> tree = ast.parse("import cadenza as c; Base = c.Callback")
    >>> Names(tree).path(ast.parse("Base", mode="eval").body)
    'cadenza.Callback'
    """

    def __init__(self, tree: ast.AST) -> None:
        self.module = Scope()
        self.scope_of: dict[ast.AST, Scope] = {}
        self.stars: set[str] = set()
        self.knows_cadenza = False
        self._told: set[ast.AST] = set()
        todo = [(tree, self.module)]
        while todo:  # a loop, since a file may be nested more deeply than Python's stack
            node, scope = todo.pop()
            self.scope_of[node] = scope
            self._bind(node, scope)
            inner = Scope(scope, isinstance(node, ast.ClassDef)) if isinstance(node, _OPENS_A_SCOPE) else scope
            todo.extend((child, inner) for child in ast.iter_child_nodes(node))

    def all(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """Every node of these kinds, in the order of the text."""
        found = [node for node in self.scope_of if isinstance(node, kinds)]
        yield from sorted(found, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))

    def path(self, expression: ast.AST, scope: Scope | None = None) -> str:
        """The dotted path that ``expression`` was imported from, else an empty text."""
        meaning = self.meaning(expression, scope or self.module)
        return meaning.path if meaning else ""

    def meaning(self, expression: ast.AST | None, scope: Scope, depth: int = 0) -> Meaning | None:
        """What ``expression`` stands for, seen from ``scope``; follows assignments of one name to another."""
        if depth > 20:
            return None
        if isinstance(expression, ast.Attribute):
            base = self.meaning(expression.value, scope, depth + 1)
            return Meaning(scope, f"{base.path}.{expression.attr}") if base and base.path else None
        if not isinstance(expression, ast.Name):
            return Meaning(scope, node=expression) if isinstance(expression, ast.Call | ast.Lambda) else None
        found = self._look_up(expression, scope)
        if found and isinstance(found.node, ast.Name | ast.Attribute):
            return self.meaning(found.node, found.scope, depth + 1)
        return found

    def _look_up(self, name: ast.Name, scope: Scope | None) -> Meaning | None:
        start = scope
        while scope is not None:
            if name.id in scope.meanings and (scope is start or not scope.of_class):
                return _the_one(scope.meanings[name.id], name.lineno)
            scope = scope.outer
        if self.stars == {"cadenza"} or (not self.stars and name.id in _UNBOUND_BUT_PLAIN):
            return Meaning(self.module, f"cadenza.{name.id}")
        return None

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    self._bind_import(node, alias.asname or alias.name.split(".")[0], alias, scope)
            case ast.ImportFrom():
                self._bind_imports_from(node, scope)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                scope.bind(name, node, value=node)
            case ast.arg(arg=name):
                scope.bind(name, node, value=node)
            case ast.Assign(targets=targets, value=value):
                self._bind_value(targets, value, scope)
            case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                self._bind_value([target], value, scope)
            case ast.Name(id=name, ctx=ast.Store()) if node not in self._told:
                scope.bind(name, node)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                scope.bind(name, node)
            case _:
                pass

    def _bind_import(self, node: ast.AST, name: str, alias: ast.alias, scope: Scope) -> None:
        path = alias.name if alias.asname else name
        self.knows_cadenza |= path.split(".")[0] == "cadenza"
        scope.bind(name, node, path=path)

    def _bind_imports_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        module = "." * node.level + (node.module or "")
        self.knows_cadenza |= module.split(".")[0] == "cadenza"
        for alias in node.names:
            if alias.name == "*":
                self.stars.add(module)
            else:
                scope.bind(alias.asname or alias.name, node, path=f"{module}.{alias.name}")

    def _bind_value(self, targets: list[ast.expr], value: ast.expr | None, scope: Scope) -> None:
        for target in targets:
            if isinstance(target, ast.Name):
                self._told.add(target)
                if value is not None:
                    scope.bind(target.id, target, value=value)


def _the_one(meanings: list[Meaning], line: int) -> Meaning | None:
    """The meaning at ``line``: the last definition before it, or what all imports and assignments before it agree on.

    An import with a fallback (``try: … except ImportError: …``) leaves a doubt, a class that is written twice does not.
    """
    ordered = sorted(meanings, key=lambda meaning: meaning.line)
    before = [meaning for meaning in ordered if meaning.line < line] or ordered
    last = before[-1]
    if isinstance(last.node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return last
    others = [meaning for meaning in before if not isinstance(meaning.node, ast.ClassDef)]
    agree = all(meaning.path == last.path and bool(meaning.node) == bool(last.node) for meaning in others)
    return last if agree else None


Method = ast.FunctionDef | ast.AsyncFunctionDef

_OF_PYTHON = ("abstractmethod", "classmethod", "contextmanager", "final", "override", "staticmethod")
_OF_TORCH = ("autocast", "enable_grad", "inference_mode", "no_grad", "set_grad_enabled")
SAME_AFTERWARDS = (*_OF_PYTHON, *_OF_TORCH)


def last_name(expression: ast.AST) -> str:
    """``no_grad`` of ``torch.no_grad()``."""
    if isinstance(expression, ast.Call):
        expression = expression.func
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def stays_a_function(function: Method) -> bool:
    """Whether its decorators leave it a function with the same arguments, as far as they are known."""
    return all(last_name(decorator) in SAME_AFTERWARDS for decorator in function.decorator_list)


def binding(function: Function) -> Literal["instance", "class", "nothing"]:
    """What a method of a class body gets as its first argument before those of the caller."""
    marks = {last_name(decorator) for decorator in getattr(function, "decorator_list", ())}
    return "nothing" if "staticmethod" in marks else "class" if "classmethod" in marks else "instance"


def yields(function: Function) -> bool:
    """Whether calling it gives a generator instead of running it."""
    todo: list[ast.AST] = list(function.body) if isinstance(function.body, list) else [function.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))
    return False


_ALIKE = 0.82
"""A name that is read may be one that somebody else's code sets, unless it is so much like one that there is."""


@cache
def names_of_a_run() -> frozenset[str]:
    """Everything public on a run: what its classes define, and what their constructors set.

    >>> {"stop", "metrics", "loss", "optimizer"} <= names_of_a_run()
    True
    """
    made = (vars(cls).get("__init__") for cls in Run.__mro__)
    steps = (step for constructor in made if isfunction(constructor) for step in dis.get_instructions(constructor))
    names = {*dir(Run), *(step.argval for step in steps if step.opname == "STORE_ATTR")}
    return frozenset(name for name in names if not name.startswith("_"))


def is_unknown(name: str) -> bool:
    return not name.startswith("_") and name not in names_of_a_run()


def set_by_the_file(names: Names) -> set[str]:
    """Names that the file sets on anything that may be a run, or asks about."""
    found: set[str] = set()
    for node in names.all(ast.Attribute, ast.Call):
        match node:
            case ast.Attribute(value=ast.Name(id="self")):
                continue
            case ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Call(func=ast.Name(id="setattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
                found.add(name)
    return found


def remark_on(name: str, called: bool, handed_on: bool) -> str:
    """What to say of a name that is unknown; nothing of one that may be right."""
    if not called and (handed_on or not meant_by(name, names_of_a_run(), _ALIKE)):
        return ""
    near = meant_by(name, names_of_a_run())
    what = f"calls run.{name}()" if called else f"reads run.{name}"
    return f"{what}, which a run does not have" + (f"; did you mean {near}?" if near else "")
