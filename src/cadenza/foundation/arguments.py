"""What callbacks ask of their arguments. A mistake is refused where it is made, by name, with what would be right."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: object, least: float) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check(good: object, says: str, value: object, error: type[Exception] = ValueError) -> None:
    """Raises an error that ``says`` what is right and shows ``value``, unless it is ``good``."""
    if not good:
        raise error(f"{says}, not {value!r}")


def whole(name: str, value: object, least: int, says: str = "must be", *, or_none: bool = False) -> None:
    good = is_whole(value, least) or (or_none and value is None)
    check(good, f"{name} {says} {'None or ' if or_none else ''}a whole number of at least {least}", value)


def positive(name: str, value: float) -> None:
    check(is_number(value) and value > 0, f"{name} must be a number above 0", value)


def at_least_zero(name: str, value: float, says: str = "is a finite number") -> None:
    check(is_number(value) and value >= 0, f"{name} {says} of at least 0", value)


def ratio(name: str, value: float) -> None:
    check(is_number(value) and 0 <= value <= 1, f"{name} must be a number from 0 to 1", value)


def below_one(name: str, value: float) -> None:
    check(is_number(value) and 0 <= value < 1, f"{name} must be a number from 0 up to, but not including, 1", value)


def flags(**values: object) -> None:
    """Each is True or False: what only looks like one, such as the text "no", would mean its opposite."""
    for name, value in values.items():
        check(isinstance(value, bool), f"{name} is True or False", value, TypeError)


def text(name: str, value: object, what: str) -> None:
    """A text with something in it."""
    check(isinstance(value, str) and value, f"{name} is {what}", value)


def one_of(name: str, value: object, choices: Sequence[str], *, or_none: bool = False) -> None:
    """One of a few words.

    >>> one_of("mode", "low", ("min", "max"))
    Traceback (most recent call last):
    ValueError: mode is "min" or "max", not 'low'
    """
    if value not in choices and not (or_none and value is None):
        *first, last = (f'"{choice}"' for choice in choices)
        raise ValueError(f"{name} is {', '.join(first)} or {last}, not {value!r}")


def among(name: str, value: object, choices: Iterable[object]) -> None:
    """One of many words.

    >>> among("format", "gif", ("png", "pdf", "svg"))
    Traceback (most recent call last):
    ValueError: format is one of png, pdf, svg, not 'gif'
    """
    known = list(choices)
    check(value in known, f"{name} is one of {', '.join(map(str, known))}", value)


def metric(name: str, value: object) -> None:
    check(isinstance(value, str) and value, f'{name} names a metric, such as "val/loss"', value)


def function(name: str, value: object, what: str = "a function of the run or None") -> None:
    """Something to call, or None."""
    check(value is None or callable(value), f"{name} is {what}", value, TypeError)


def texts(name: str, values: Any, what: str, *, least: int = 1) -> list[str]:
    """The texts in a list, of which there are at least so many.

    >>> texts("layers", ("a", "b"), "a list of names")
    ['a', 'b']
    """
    one = isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable)
    found = [] if one else list(values)
    good = not one and len(found) >= least and all(isinstance(part, str) and part for part in found)
    check(good, f"{name} is {what}", values, TypeError)
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
    good = chosen and all(isinstance(one, str) and one in known for one in chosen)
    check(good, f"{name} is some of {', '.join(known)}", values)
    return frozenset(chosen)


def loader(name: str, value: object) -> None:
    """Batches that can be gone over many times, or None."""
    often = isinstance(value, Iterable) and not isinstance(value, Iterator | str | bytes | Mapping)
    if value is not None and not often:
        raise TypeError(f"{name} gives batches each time that it is gone over, such as a DataLoader, not {value!r}")


def stream(name: str, value: object) -> None:
    good = value is None or callable(getattr(value, "write", None))
    check(good, f"{name} is something to write texts to, such as sys.stderr, or None", value, TypeError)


def path(name: str, value: object, what: str = "the name of a file or None") -> str | os.PathLike[str] | None:
    if value is not None and (not isinstance(value, str | os.PathLike) or not os.fspath(value)):
        raise TypeError(f"{name} is {what}, not {value!r}")
    return value


def file_format(who: str, file: str | os.PathLike[str] | None, format: str | None, known: Sequence[str]) -> str:
    """The format of a file: the end of its name or what was asked for, else the first of those that are known.

    >>> file_format("Plot", "curve.PDF", None, ("png", "pdf"))
    'pdf'
    """
    path(f"{who}: path", file)
    ending = None if file is None else Path(file).suffix.removeprefix(".").lower()
    for found in (ending, format):
        if found is not None and found not in known:
            raise ValueError(f"{who}: the end of path or else format is {', '.join(known)}, not {found!r}: {file!r}")
    if ending is not None and format not in (None, ending):
        raise ValueError(f"{who}: path ends in .{ending}, but format is {format!r}; leave one of them out")
    return ending or format or known[0]
