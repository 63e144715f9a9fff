"""Which functions of a file are given to a trainer of ours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from cadenza.cli.checking.names import SAME_AFTERWARDS, Function, Method, Names, Scope, last_name, stays_a_function

TRAINERS = ("cadenza.Trainer", "cadenza.trainer.Trainer")


@dataclass(frozen=True)
class Given:
    """A function that is given to ``trainer.on(point)``, or only the call if the function is not in this file."""

    point: str
    call: ast.Call
    function: Function | None


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
            function = _left_alone(decorated) if decorated else _argument(callers.get(node), names, scope)
            yield Given(point, node, function)


def _point_of(call: ast.Call) -> str | None:
    if last_name(call.func) != "on" or len(call.args) + len(call.keywords) != 1:
        return None
    (argument,) = call.args or [keyword.value for keyword in call.keywords]
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None


def _left_alone(function: Method) -> Method | None:
    """``function`` if it has no decorators but ``trainer.on``, of which it may have several."""
    others = [
        decorator
        for decorator in function.decorator_list
        if not (isinstance(decorator, ast.Call) and _point_of(decorator))
        and last_name(decorator) not in SAME_AFTERWARDS
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
    origin = None
    if meaning and isinstance(meaning.node, ast.Call):
        origin = meaning.node.func
    elif meaning and isinstance(meaning.node, ast.arg):
        origin = meaning.node.annotation
    path = names.path(origin, meaning.scope) if meaning and origin else ""
    if path or (meaning and meaning.path) or (origin and last_name(origin) == "Trainer"):
        return path in TRAINERS
    return names.knows_cadenza and not isinstance(expression, ast.Call) and last_name(expression) == "trainer"
