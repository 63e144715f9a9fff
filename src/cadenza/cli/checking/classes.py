"""Which classes of a file are callbacks of ours, what they are made of, and which functions are given to a trainer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import cadenza
from cadenza.callback import Callback
from cadenza.cli.checking.names import Function, Names, Scope

_OF_PYTHON = ("abstractmethod", "classmethod", "contextmanager", "final", "override", "staticmethod")
_OF_TORCH = ("autocast", "enable_grad", "inference_mode", "no_grad", "set_grad_enabled")
_SAME_AFTERWARDS = (*_OF_PYTHON, *_OF_TORCH)
TRAINERS = ("cadenza.Trainer", "cadenza.trainer.Trainer")

Method = ast.FunctionDef | ast.AsyncFunctionDef


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


@dataclass(frozen=True)
class Given:
    """A function that is given to ``trainer.on(point)``, or only the call if the function is not in this file."""

    point: str
    call: ast.Call
    function: Function | None


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


def last_name(expression: ast.AST) -> str:
    """``no_grad`` of ``torch.no_grad()``."""
    if isinstance(expression, ast.Call):
        expression = expression.func
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


def stays_a_function(function: Method) -> bool:
    """Whether its decorators leave it a function with the same arguments, as far as they are known."""
    return all(last_name(decorator) in _SAME_AFTERWARDS for decorator in function.decorator_list)


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


def given_functions(names: Names) -> Iterator[Given]:
    """``@trainer.on("point")`` over a function, and ``trainer.on("point")(function)``."""
    decorators: dict[ast.AST, Method] = {}
    callers: dict[ast.AST, ast.Call] = {}
    for node in names.all(ast.FunctionDef, ast.AsyncFunctionDef, ast.Call):
        if isinstance(node, Method):
            decorators.update(dict.fromkeys(node.decorator_list, node))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Call):
            callers[node.func] = node
    for node in names.all(ast.Call):
        if not isinstance(node, ast.Call) or (point := _point_of(node)) is None:
            continue
        decorated = decorators.get(node)
        scope = names.scope_of[decorated or node]
        if isinstance(node.func, ast.Attribute) and is_trainer(node.func.value, names, scope):
            function = _left_alone(decorated, names, scope) if decorated else _argument(callers.get(node), names, scope)
            yield Given(point, node, function)


def _point_of(call: ast.Call) -> str | None:
    if last_name(call.func) != "on" or len(call.args) + len(call.keywords) != 1:
        return None
    (argument,) = call.args or [keyword.value for keyword in call.keywords]
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None


def _left_alone(function: Method, names: Names, scope: Scope) -> Method | None:
    """``function`` if it has no decorators but ``trainer.on``, of which it may have several."""
    others = [
        decorator
        for decorator in function.decorator_list
        if not (isinstance(decorator, ast.Call) and _point_of(decorator))
        and last_name(decorator) not in _SAME_AFTERWARDS
    ]
    return None if others else function


def _argument(call: ast.Call | None, names: Names, scope: Scope) -> Function | None:
    if call is None or len(call.args) != 1:
        return None
    meaning = names.meaning(call.args[0], scope)
    node = meaning.node if meaning else None
    if isinstance(node, ast.Lambda) or (isinstance(node, Method) and stays_a_function(node)):
        return node
    return None


def is_trainer(expression: ast.AST, names: Names, scope: Scope) -> bool:
    """Whether this is a trainer of ours: made by ``Trainer(...)``, or named so where nothing speaks against it."""
    meaning = names.meaning(expression, scope)
    maker = None
    if meaning and isinstance(meaning.node, ast.Call):
        maker = names.meaning(meaning.node.func, meaning.scope)
    elif meaning and isinstance(meaning.node, ast.arg) and meaning.node.annotation is not None:
        maker = names.meaning(meaning.node.annotation, meaning.scope)
    made_by = maker.path if maker else ""
    if meaning and isinstance(meaning.node, ast.Call) and last_name(meaning.node) == "Trainer":
        return made_by in TRAINERS
    if made_by or (meaning and meaning.path):
        return made_by in TRAINERS
    return names.knows_cadenza and not isinstance(expression, ast.Call) and last_name(expression) == "trainer"
