"""Whether a value of a recipe fits an argument, by the argument's annotation."""

from __future__ import annotations

import builtins
import collections.abc
import enum
import inspect
import os
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from cadenza.clock import Duration

_CALLABLE: Any = collections.abc.Callable
YES, NO = ("yes", "on", "true"), ("no", "off", "false")


class Mismatch(ValueError):
    """A value does not fit; the text says what would."""


class Made:
    """Stands for an object that is built later; ``thing`` is the class or function that makes it."""

    thing: Any
    partial: bool


class _Names(dict[str, Any]):
    """Names in annotations. One that is imported for type checkers only could be anything."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        super().__init__()
        self.namespace = namespace

    def __missing__(self, name: str) -> Any:
        if name in self.namespace:
            return self.namespace[name]
        return getattr(builtins, name, getattr(typing, name, Any))


def hints_of(thing: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of the arguments, as far as they can be known."""
    function = thing.__init__ if inspect.isclass(thing) else thing
    names = getattr(function, "__globals__", {})
    return {name: _evaluated(hint, names) for name, hint in getattr(function, "__annotations__", {}).items()}


def _evaluated(hint: Any, names: dict[str, Any]) -> Any:
    def bearer() -> None: ...

    bearer.__annotations__ = {"hint": hint}
    try:
        return typing.get_type_hints(bearer, globalns=names, localns=_Names(names))["hint"]
    except Exception:  # whatever an annotation does when it is evaluated: then this argument is not checked
        return Any


def converted(value: Any, hint: Any) -> Any:
    """``value`` as the argument wants it; ``Mismatch`` if it does not fit.

    >>> converted("on", bool), converted("on", str), converted(1e3, int)
    (True, 'on', 1000)
    """
    try:
        return _convert(value, hint, strict=True)
    except Mismatch:
        return _convert(value, hint, strict=False)


def _convert(value: Any, hint: Any, strict: bool) -> Any:
    origin = get_origin(hint)
    if hint is Any or hint is inspect.Parameter.empty or isinstance(hint, str | typing.TypeVar):
        return value
    if origin is typing.Annotated:
        return _convert(value, get_args(hint)[0], strict)
    if origin in (Union, types.UnionType):
        return _one_of(value, get_args(hint), strict)
    if origin is Literal:
        return value if value in get_args(hint) else _refuse(value, hint)
    if hint is None or hint is type(None):
        return None if value is None else _refuse(value, hint)
    if isinstance(value, Made):
        return _made(value, hint, origin)
    if hint in _PLAIN:
        return _PLAIN[hint](value, strict)
    if hint is Duration:
        return _duration(value)
    return _container(value, hint, origin, strict)


def _one_of(value: Any, members: tuple[Any, ...], strict: bool) -> Any:
    if Duration in members and isinstance(value, str):
        return _duration(value)
    for member in members:
        try:
            return _convert(value, member, strict)
        except Mismatch:
            continue
    return _refuse(value, Union[members])  # noqa: UP007


def _made(value: Made, hint: Any, origin: Any) -> Any:
    """An object fits a class that it is of; what a function makes is not known before."""
    wanted = origin if inspect.isclass(origin) else hint
    made = value.thing
    if value.partial or not inspect.isclass(made) or not inspect.isclass(wanted):
        return value
    if wanted in (str, int, float, bool):
        return _refuse(f"a {made.__name__}", hint)
    fits: bool = wanted is _CALLABLE or getattr(wanted, "_is_protocol", False) or issubclass(made, wanted)
    return value if fits else _refuse(f"a {made.__name__}", hint)


def _truth(value: Any, strict: bool) -> bool:
    if isinstance(value, bool):
        return value
    if not strict and isinstance(value, str) and value.lower() in (*YES, *NO):
        return value.lower() in YES
    return bool(_refuse(value, bool))


def _whole(value: Any, strict: bool) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not strict and isinstance(value, float) and value.is_integer():
        return int(value)
    return int(_refuse(value, int))


def _number(value: Any, strict: bool) -> float:
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        return float(value)
    return float(_refuse(value, float))


def _text(value: Any, strict: bool) -> str:
    return value if isinstance(value, str) else str(_refuse(value, str))


def _path(value: Any, strict: bool) -> Path:
    return Path(value) if isinstance(value, str) else Path(str(_refuse(value, Path)))


_PLAIN: dict[Any, Callable[[Any, bool], Any]] = {bool: _truth, int: _whole, float: _number, str: _text, Path: _path}


def _duration(value: Any) -> Any:
    try:
        Duration.parse(value)
    except ValueError as error:
        raise Mismatch(str(error)) from None
    return value


def _container(value: Any, hint: Any, origin: Any, strict: bool) -> Any:
    wanted, inner = origin or hint, get_args(hint)
    if not inspect.isclass(wanted):
        return value
    if typing.is_typeddict(hint):
        return _typed_dict(value, hint, strict)
    if issubclass(wanted, collections.abc.Mapping):
        if not isinstance(value, dict):
            return _refuse(value, hint)
        return {key: _convert(one, inner[1] if len(inner) == 2 else Any, strict) for key, one in value.items()}
    if wanted is not str and issubclass(wanted, collections.abc.Iterable) and not issubclass(wanted, os.PathLike):
        return _sequence(value, hint, wanted, inner, strict)
    return _single(value, hint, wanted)


def _single(value: Any, hint: Any, wanted: Any) -> Any:
    if issubclass(wanted, os.PathLike):
        return value if isinstance(value, str) else _refuse(value, hint)
    if isinstance(value, str) and issubclass(wanted, enum.Enum) and value in wanted.__members__:
        return wanted[value]
    if isinstance(value, str) and wanted.__module__ == "torch":
        return _of_torch(value, wanted)
    return value if wanted is object or (wanted is not type and isinstance(value, wanted)) else _refuse(value, hint)


def _of_torch(value: str, wanted: Any) -> Any:
    import torch

    if wanted is torch.dtype and isinstance(getattr(torch, value, None), torch.dtype):
        return getattr(torch, value)
    return torch.device(value) if wanted is torch.device else _refuse(value, wanted)


def _typed_dict(value: Any, hint: Any, strict: bool) -> Any:
    hints = typing.get_type_hints(hint)
    if not isinstance(value, dict) or not value.keys() <= hints.keys():
        return _refuse(value, hint)
    return {key: _convert(one, hints[key], strict) for key, one in value.items()}


def _sequence(value: Any, hint: Any, wanted: type, inner: tuple[Any, ...], strict: bool) -> Any:
    if not isinstance(value, list | tuple) or issubclass(wanted, typing.IO | typing.TextIO):
        return _refuse(value, hint)
    fixed = issubclass(wanted, tuple) and inner and inner[-1] is not Ellipsis
    if fixed and len(value) != len(inner):
        return _refuse(value, hint)
    kinds = inner if fixed else [inner[0] if inner else Any] * len(value)
    parts = [_convert(one, kind, strict) for one, kind in zip(value, kinds, strict=True)]
    if issubclass(wanted, tuple):
        return tuple(parts)
    return wanted(parts) if wanted in (set, frozenset) else parts


def _refuse(value: Any, hint: Any) -> Any:
    quotes = ""
    if hint is str and isinstance(value, int | float) and not isinstance(value, bool):
        quotes = "; to give the text, put it in quotes"
    elif isinstance(value, str) and "list" in describe(hint) and "text" not in describe(hint).split("list")[0]:
        quotes = f"; write [{value}]"
    raise Mismatch(f"{value!r} is not {describe(hint)}{quotes}")


_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    type(None): "null",
    Duration: "a duration such as '100 steps'",
    Any: "a value",
}


def describe(hint: Any) -> str:
    """An annotation in words.

    >>> describe(int | None), describe(typing.Sequence[float])
    ('a whole number or null', 'a list (each a number)')
    """
    if hint in _WORDS:
        return _WORDS[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        members = [member for member in inner if not (member is str and Duration in inner)]
        words = list(dict.fromkeys(describe(member) for member in members))
        plain = [word for word in words if not word.startswith("an object of")]
        return " or ".join(plain or words)
    if origin is Literal:
        return "one of " + ", ".join(repr(one) for one in inner)
    wanted = origin or hint
    found = _container_in_words(wanted, inner) if inspect.isclass(wanted) else ""
    return found or f"an object of {getattr(wanted, '__name__', str(wanted))}, built with _target_"


def _container_in_words(wanted: type, inner: tuple[Any, ...]) -> str:
    if wanted is _CALLABLE:
        return "a function: {_target_: ..., _partial_: true}"
    if issubclass(wanted, collections.abc.Mapping):
        return "a mapping"
    if issubclass(wanted, os.PathLike):
        return "a path"
    if wanted is tuple and inner and inner[-1] is not Ellipsis:
        return f"a list of {len(inner)}"
    if inner and issubclass(wanted, collections.abc.Iterable):
        return f"a list (each {describe(inner[0])})" if inner[0] is not Any else "a list"
    return "a list" if issubclass(wanted, list | tuple | set | frozenset) else ""
