"""What the text of a function tells about calling it."""

from __future__ import annotations

import ast
from typing import Literal

from cadenza.cli.checking.names import Function

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
