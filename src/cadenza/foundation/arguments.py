"""What callbacks ask of their arguments. A mistake is refused where it is made, by name, with what would be right."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def whole(name: str, value: object, least: int) -> None:
    if not is_whole(value, least):
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


def positive(name: str, value: float) -> None:
    if not is_number(value) or value <= 0:
        raise ValueError(f"{name} must be a number above 0, not {value!r}")


def ratio(name: str, value: float) -> None:
    if not is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, not {value!r}")


def below_one(name: str, value: float) -> None:
    if not is_number(value) or not 0 <= value < 1:
        raise ValueError(f"{name} must be a number from 0 up to, but not including, 1, not {value!r}")


def flags(**values: object) -> None:
    """Each is True or False: what only looks like one, such as the text "no", would mean its opposite."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} is True or False, not {value!r}")


def text(name: str, value: object, what: str) -> None:
    """A text with something in it."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} is {what}, not {value!r}")


def one_of(name: str, value: object, choices: Sequence[str], *, or_none: bool = False) -> None:
    """One of a few words.

    >>> one_of("mode", "low", ("min", "max"))
    Traceback (most recent call last):
    ValueError: mode is "min" or "max", not 'low'
    """
    if value not in choices and not (or_none and value is None):
        *first, last = (f'"{choice}"' for choice in choices)
        raise ValueError(f"{name} is {', '.join(first)} or {last}, not {value!r}")


def function(name: str, value: object, what: str = "a function of the run") -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} is {what} or None, not {value!r}")


def texts(name: str, values: Any, what: str, *, least: int = 1) -> list[str]:
    """The texts in a list, of which there are at least so many.

    >>> texts("layers", ("a", "b"), "a list of names")
    ['a', 'b']
    """
    one = isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable)
    found = [] if one else list(values)
    if one or len(found) < least or not all(isinstance(part, str) and part for part in found):
        raise TypeError(f"{name} is {what}, not {values!r}")
    return found


def labels(name: str, values: Any) -> list[str]:
    """The names of classes, each a text or a whole number.

    >>> labels("classes", range(3))
    ['0', '1', '2']
    """
    several = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    found = list(values) if several else []
    if not found or not all(one if isinstance(one, str) else hasattr(one, "__index__") for one in found):
        raise TypeError(f"{name} is a list with the name of each class, not {values!r}")
    return [str(one) for one in found]


def some_of(name: str, values: Any, known: Collection[str]) -> frozenset[str]:
    """The chosen ones, given as one text or several.

    >>> some_of("stages", "val", ("train", "val"))
    frozenset({'val'})
    """
    chosen = [values] if isinstance(values, str) else list(values) if isinstance(values, Iterable) else []
    if not chosen or not all(isinstance(one, str) and one in known for one in chosen):
        raise ValueError(f"{name} is some of {', '.join(known)}, not {values!r}")
    return frozenset(chosen)


def loader(name: str, value: object) -> None:
    """Batches that can be gone over many times, or None."""
    often = isinstance(value, Iterable) and not isinstance(value, Iterator | str | bytes | Mapping)
    if value is not None and not often:
        raise TypeError(f"{name} gives batches each time that it is gone over, such as a DataLoader, not {value!r}")


def stream(name: str, value: object) -> None:
    if value is not None and not callable(getattr(value, "write", None)):
        raise TypeError(f"{name} is something to write texts to, such as sys.stderr, or None, not {value!r}")


def path(name: str, value: object, what: str = "the name of a file or None") -> None:
    if value is not None and (not isinstance(value, str | os.PathLike) or not os.fspath(value)):
        raise TypeError(f"{name} is {what}, not {value!r}")
