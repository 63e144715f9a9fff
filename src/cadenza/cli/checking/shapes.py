"""Whether what is meant to be played can be played: its name, its signature, its kind of function.

Registration itself is asked, with a stand-in that has the same name and signature and does nothing. So what is said
here is what a run would say.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from cadenza.callback import BEHAVIOUR_NAMES, Callback
from cadenza.cli.checking.classes import Family, methods
from cadenza.cli.checking.names import Function, binding, yields
from cadenza.cli.checking.trainers import Given
from cadenza.main_callback import MainCallback
from cadenza.points import POINTS
from cadenza.registration.checks import CallbackError, check_callback, check_signature, nearest_point
from cadenza.registration.suggestions import looks_like_a_point

Remark = tuple[ast.AST, str]

_WRAPPERS: dict[str, Callable[..., Any]] = {
    "nothing": staticmethod,
    "class": classmethod,
    "instance": lambda function: function,
}


def check_classes(families: Sequence[Family]) -> Iterator[Remark]:
    """What is wrong with the methods of the callbacks among ``families``."""
    parts_of_main = {node for family in families if family.may_be_main for node in family.inside}
    callbacks = [family for family in families if family.is_callback]
    of_their_own = {family.node for family in callbacks}
    for family in callbacks:
        base = MainCallback if family.node in parts_of_main else Callback
        for name, method in methods(family.node).items():
            yield from _check_method(family.node.name, base, name, method)
        for mixin in family.inside:
            if mixin not in of_their_own:
                yield from _check_mixin(mixin, family.node.name, base)


def _check_method(cls: str, base: type[Callback], name: str, method: Function) -> Iterator[Remark]:
    if name in POINTS or looks_like_a_point(name):
        members = {name: _member(method)}
        yield from remarks_of(method, f"{cls}.{name}", lambda: check_callback(type(cls, (base,), members)()))


def _check_mixin(mixin: ast.ClassDef, cls: str, base: type[Callback]) -> Iterator[Remark]:
    for name, method in methods(mixin).items():
        if name in POINTS or looks_like_a_point(name):
            bases = (type(mixin.name, (), {name: _member(method)}), base)
            ask = partial(lambda bases: check_callback(type(cls, bases, {})()), bases)
            yield from remarks_of(method, f"{mixin.name}.{name}", ask)


def _member(method: Function) -> Any:
    return _WRAPPERS[binding(method)](stand_in(method))


def check_given(given: Given) -> Iterator[Remark]:
    """What is wrong with a function at ``trainer.on``."""
    if given.point not in POINTS:
        yield given.call, nearest_point(given.point)
    elif given.point in BEHAVIOUR_NAMES:
        yield given.call, f"{given.point} is a behaviour, which only the MainCallback owns: derive a class from it"
    elif given.function is not None:
        function = given.function
        where = f"the function {getattr(function, 'name', '<lambda>')}"
        yield from remarks_of(function, where, lambda: check_signature(where, given.point, stand_in(function)))


def remarks_of(node: ast.AST, about: str, ask: Callable[[], None]) -> Iterator[Remark]:
    """What registration says of ``about`` when it is asked. A stand-in may lack other things that the class has."""
    try:
        ask()
    except CallbackError as error:
        if str(error).startswith(about):
            yield node, str(error)


# Stand-ins ------------------------------------------------------------------------------------------------------------


def stand_in(function: Function) -> Callable[..., Any]:
    """A function of the same kind and with the same signature that does nothing.

    >>> stand_in(ast.parse("def f(self, run, *, every=10 * n): yield").body[0]).__signature__
    <Signature (self, run, *, every=10 * n)>
    """
    made = _of_same_kind(function)
    try:
        made.__signature__ = inspect.Signature(list(_parameters(function.args)))  # type: ignore[attr-defined]
    except ValueError:
        pass  # one name twice: Python will refuse it, and any arguments will do here
    return made


def _of_same_kind(function: Function) -> Callable[..., Any]:
    def plain(*_: Any) -> None: ...

    def generator(*_: Any) -> Iterator[None]:
        yield

    async def coroutine(*_: Any) -> None: ...

    if isinstance(function, ast.AsyncFunctionDef):
        return coroutine
    return generator if yields(function) else plain


class _Default:
    """A default value, of which only the text is known."""

    def __init__(self, node: ast.expr) -> None:
        try:
            self.text = ast.unparse(node)
        except RecursionError:  # it is nested more deeply than Python's stack
            self.text = "..."

    def __repr__(self) -> str:
        return self.text


def _parameters(arguments: ast.arguments) -> Iterator[inspect.Parameter]:
    kinds = inspect.Parameter
    places: list[tuple[str, Any]] = [(argument.arg, kinds.POSITIONAL_ONLY) for argument in arguments.posonlyargs]
    places += [(argument.arg, kinds.POSITIONAL_OR_KEYWORD) for argument in arguments.args]
    first_default = len(places) - len(arguments.defaults)
    for position, (name, kind) in enumerate(places):
        given = arguments.defaults[position - first_default] if position >= first_default else None
        yield _parameter(name, kind, given)
    if arguments.vararg:
        yield _parameter(arguments.vararg.arg, kinds.VAR_POSITIONAL, None)
    for argument, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument.arg, kinds.KEYWORD_ONLY, given)
    if arguments.kwarg:
        yield _parameter(arguments.kwarg.arg, kinds.VAR_KEYWORD, None)


def _parameter(name: str, kind: Any, default: ast.expr | None) -> inspect.Parameter:
    return inspect.Parameter(name, kind, default=inspect.Parameter.empty if default is None else _Default(default))
