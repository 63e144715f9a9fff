# ruff: noqa: N802, N815 - the names of the visit methods are Python's
"""What a function does with the run: the fields it reads and sets, the requests it makes."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from dataclasses import dataclass, field

from cadenza.cli.checking.names import Function, is_unknown
from cadenza.cli.checking.order import InOrder
from cadenza.points import FIELDS, REQUESTS

_DEPTH = 4
_BUILTINS = frozenset(dir(builtins))
_PLAYS = ("eval_step", "forward", "predicting", "recompute", "test", "train", "train_step", "validate")
"""Verbs of a run that set fields while they play."""
_PARTS = ("inputs", "targets")
"""Parts of the batch: they can be set only while there is one."""


@dataclass(frozen=True)
class Use:
    """One field read, or one request made; or a name that a run does not have."""

    node: ast.AST
    name: str
    helper: str
    """The function that does it, if it is not the player itself."""
    excused: bool
    """Whether something before or around it takes care: a store, ``hasattr``, ``try``."""
    sure: bool
    """Whether no condition inside a helper decides about it."""
    handed_on: bool
    """Whether code of which nothing is known had the run before, and may have set the field."""
    cleaning_up: bool
    """Whether it stands in an ``except`` or ``finally``."""
    called: bool
    """Whether it is called, as a request is."""


@dataclass
class Story:
    """What is known while a function is read from top to bottom, helpers included."""

    uses: list[Use] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    asked_for: set[str] = field(default_factory=set)
    handed_on: bool = False
    followed: list[Function] = field(default_factory=list)


@dataclass(frozen=True)
class Helper:
    """A function of the file that is called, and how many of its parameters are filled before those of the caller."""

    function: Function
    label: str
    bound: int

    @property
    def parameters(self) -> list[str]:
        return [argument.arg for argument in (*self.function.args.posonlyargs, *self.function.args.args)]

    def filled(self, call: ast.Call) -> dict[str, ast.expr]:
        """The parameters that ``call`` gives, by name."""
        found = dict(zip(self.parameters[self.bound :], call.args, strict=False))
        return found | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


FindHelper = Callable[[ast.expr, str], Helper | None]


class Reader(InOrder):
    """Reads one function. ``runs`` are the names of the run in it, ``own`` that of the callback, if it has one."""

    def __init__(self, story: Story, runs: set[str], own: str, find_helper: FindHelper, helper: str = "") -> None:
        super().__init__()
        self.story = story
        self.runs = runs
        self.own = own
        self.find_helper = find_helper
        self.helper = helper

    def read(self, function: Function) -> Story:
        self.story.followed.append(function)
        self.visit_all(function.body if isinstance(function.body, list) else [function.body])
        self.story.followed.pop()
        return self.story

    def _is_run(self, node: ast.AST | None) -> bool:
        return node is not None and _key(node) in self.runs

    def _use(self, node: ast.AST, name: str, error: type[Exception], *, called: bool = False) -> None:
        story = self.story
        excused = name in story.stored or name in story.asked_for or self.is_caught(error)
        sure = not (self.helper and self.conditions)
        cleaning_up = self.cleaning_up > 0
        story.uses.append(Use(node, name, self.helper, excused, sure, story.handed_on, cleaning_up, called))

    def _read(self, node: ast.AST, name: str) -> None:
        if name in FIELDS or is_unknown(name):
            self._use(node, name, AttributeError)

    def _store(self, name: str) -> None:
        self.story.stored |= {name, *(_PARTS if name == "batch" else ())}

    # Names and attributes -------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self.runs.discard(node.id)
        elif node.id in self.runs:
            self.story.handed_on = True  # a value of its own: an argument, an element of a list

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._is_run(node.value):
            if isinstance(node.ctx, ast.Load) or (isinstance(node.ctx, ast.Store) and node.attr in _PARTS):
                self._read(node, node.attr)
            elif isinstance(node.ctx, ast.Store):
                self._store(node.attr)
            return
        if self._is_run(node):
            self.story.handed_on = True
            if not isinstance(node.ctx, ast.Load):
                self.runs.discard(_key(node))
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assign(node.targets, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign([node.target], node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._assign([node.target], node.value)

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        is_run = self._is_run(value)
        if not is_run:
            self.visit(value)
        for target in targets:
            if is_run and (isinstance(target, ast.Name) or self._is_own(target)):
                self.runs.add(_key(target))
            else:
                self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Attribute) and self._is_run(node.target.value):
            self._read(node.target, node.target.attr)
        self.visit(node.target)

    def _is_own(self, node: ast.AST) -> bool:
        return bool(self.own) and _key(node).startswith(f"{self.own}.")

    # Calls ----------------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func
        if isinstance(called, ast.Attribute) and self._is_run(called.value):
            self._visit_arguments(node)
            self._call_of_run(node, called.attr)
        elif isinstance(called, ast.Name) and called.id in _BUILTINS and node.args and self._is_run(node.args[0]):
            self._visit_arguments(node)
            self._call_of_builtin(node, called.id)
        elif not self._follow(node):
            self.generic_visit(node)

    def _visit_arguments(self, node: ast.Call) -> None:
        self.visit_all(argument for argument in _arguments(node) if not self._is_run(argument))

    def _call_of_run(self, node: ast.Call, name: str) -> None:
        if name in REQUESTS:
            self._use(node, name, RuntimeError, called=True)
        elif is_unknown(name):
            self._use(node, name, AttributeError, called=True)
        elif name in _PLAYS:
            self.story.asked_for |= set(FIELDS)
        else:
            self._read(node.func, name)

    def _call_of_builtin(self, node: ast.Call, name: str) -> None:
        match node.args[1:]:
            case [ast.Constant(value=str(told)), *rest]:
                names = {told}
            case rest:
                names = set(FIELDS)
        if name == "setattr":
            self.story.stored |= names
            self.story.handed_on |= len(names) > 1  # it may be any name
        elif name == "getattr" and not rest:
            self._read(node, names.pop())
        elif name in ("hasattr", "getattr", "vars", "dir"):
            self.story.asked_for |= names

    def _follow(self, node: ast.Call) -> bool:
        """Reads a helper of this file in the place where it is called; False if there is none or it is too far."""
        gets_it = any(self._is_run(argument) for argument in _arguments(node))
        helper = self.find_helper(node.func, self.own) if gets_it or self._is_own(node.func) else None
        if helper is None or helper.function in self.story.followed or len(self.story.followed) > _DEPTH:
            return False
        runs = {name for name, argument in helper.filled(node).items() if self._is_run(argument)}
        if gets_it and not runs:
            return False
        own = helper.parameters[0] if helper.bound and helper.parameters else ""
        if own and self.own:
            runs |= {own + key.removeprefix(self.own) for key in self.runs if key.startswith(f"{self.own}.")}
        self._visit_arguments(node)
        reader = Reader(self.story, runs, own, self.find_helper, helper.label)
        reader.caught, reader.cleaning_up = list(self.caught), self.cleaning_up
        reader.conditions = self.conditions if self.helper else 0
        reader.read(helper.function)
        return True

    # What happens later or again --------------------------------------------------------------------------------------

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._stores_inside(node)
        super().visit_For(node)

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self._stores_inside(node)
        super().visit_While(node)

    def _stores_inside(self, node: ast.AST) -> None:
        """In a loop, what is set further down is there in the next round; a function may be called at any time."""
        added_to = {inner.target for inner in ast.walk(node) if isinstance(inner, ast.AugAssign)}
        for inner in ast.walk(node):
            if not isinstance(inner, ast.Attribute) or inner in added_to or inner.attr in _PARTS:
                continue
            if isinstance(inner.ctx, ast.Store) and self._is_run(inner.value):
                self._store(inner.attr)

    def _later(self, node: ast.AST) -> None:
        """A function inside the function: nobody knows at which point it runs, only what it may set."""
        self._stores_inside(node)
        self.story.handed_on |= any(self._is_run(inner) for inner in ast.walk(node))
        self.runs.discard(getattr(node, "name", ""))

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = _later

    # Names that are bound without a Name node -------------------------------------------------------------------------

    def _rebound(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar) -> None:
        self.runs.discard(node.name or "")
        self.generic_visit(node)

    visit_ExceptHandler = visit_MatchAs = visit_MatchStar = _rebound

    def visit_alias(self, node: ast.alias) -> None:
        self.runs.discard(node.asname or node.name.split(".")[0])


def _key(node: ast.AST) -> str:
    """``run`` or ``self.run`` as a text, by which they are recognised."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]
