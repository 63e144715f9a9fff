"""Whether what is meant to be played can be played: its name, its signature, its kind of function.

What is refused here is what registration refuses, in the same words; ``befor_step`` comes on top of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from cadenza.callback import BEHAVIOUR_NAMES
from cadenza.cli.checking.classes import Family, Given, binding, methods, yields
from cadenza.cli.checking.names import Function
from cadenza.points import POINTS, Kind, looks_like_a_point, nearest
from cadenza.registration import nearest_point

Remark = tuple[ast.AST, str]


def check_classes(families: Sequence[Family]) -> Iterator[Remark]:
    """What is wrong with the methods of the callbacks among ``families``."""
    parts_of_main = {node for family in families if family.may_be_main for node in family.inside}
    for family in families:
        if family.is_callback:
            for name, method in methods(family.node).items():
                yield from _check_method(family.node, name, method, family.node in parts_of_main)


def _check_method(cls: ast.ClassDef, name: str, method: Function, may_be_main: bool) -> Iterator[Remark]:
    where = f"{cls.name}.{name}"
    if name in POINTS:
        if name in BEHAVIOUR_NAMES and not may_be_main:
            yield method, f"{where} is a behaviour, and only the MainCallback owns it: derive {cls.name} from it"
        else:
            yield from check_function(where, name, method, given=1 if binding(method) == "nothing" else 2)
    elif looks_like_a_point(name) or (_is_nearly_a_point(name) and _takes(method.args, 2)):
        near = nearest(name)
        yield (
            method,
            f"{where} looks like a point and is none"
            + (f"; did you mean {near}?" if near else "; `cadenza points` lists them all.")
            + " If it is a helper of your own, give it another name or mark it with @cadenza.not_a_point",
        )


def _is_nearly_a_point(name: str) -> bool:
    """``befor_step``: registration cannot tell it from a helper, and it would never be played."""
    close = get_close_matches(name, POINTS, n=1, cutoff=0.9)
    return bool(close) and bool(get_close_matches(name.split("_")[0], ("before", "after", "around"), cutoff=0.75))


def check_given(given: Given) -> Iterator[Remark]:
    """What is wrong with a function at ``trainer.on``."""
    if given.point not in POINTS:
        yield given.call, nearest_point(given.point)
    elif given.point in BEHAVIOUR_NAMES:
        yield given.call, f"{given.point} is a behaviour, and only the MainCallback owns it: derive a class from it"
    elif given.function is not None:
        name = getattr(given.function, "name", "<lambda>")
        yield from check_function(f"the function {name}", given.point, given.function, given=1)


def check_function(where: str, point: str, function: Function, *, given: int) -> Iterator[Remark]:
    """A player takes the run and nothing else; only ``around`` may yield; nothing is asynchronous."""
    if isinstance(function, ast.AsyncFunctionDef):
        yield function, f"{where} is asynchronous; a point is played by a plain function"
    elif POINTS[point].kind is not Kind.AROUND and yields(function):
        yield function, f"{where} yields, so it would never run; only around_* points may be generators"
    elif not _takes(function.args, given):
        yield function, f"{where}{_signature(function)} must be callable with the run alone: def {point}(self, run)"


def _signature(function: Function) -> str:
    try:
        return f"({ast.unparse(function.args)})"
    except RecursionError:  # a default that is nested more deeply than Python's stack
        return "(...)"


def _takes(arguments: ast.arguments, given: int) -> bool:
    """Whether a call with ``given`` positional arguments and nothing else is possible."""
    places = len(arguments.posonlyargs) + len(arguments.args)
    needed = places - len(arguments.defaults)
    return needed <= given and (places >= given or arguments.vararg is not None) and None not in arguments.kw_defaults
