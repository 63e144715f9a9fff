"""The small functions of ``fastai.core`` that callbacks use."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from cadenza.dialects.numeric import numpy as np


def is_listy(x: Any) -> bool:
    return isinstance(x, tuple | list)


def is_tuple(x: Any) -> bool:
    return isinstance(x, tuple)


def is_dict(x: Any) -> bool:
    return isinstance(x, dict)


def noop(x: Any) -> Any:
    return x


def ifnone(a: Any, b: Any) -> Any:
    return b if a is None else a


def listify(p: Any = None, q: Any = None) -> list[Any]:
    """``p`` as a list, of as many as ``q`` says or has.

    >>> listify(None), listify("ab"), listify(3, 2), listify((1, 2))
    ([], ['ab'], [3, 3], [1, 2])
    """
    if p is None:
        found: list[Any] = []
    elif isinstance(p, str) or not isinstance(p, Iterable):
        found = [p]
    else:
        found = list(p) if hasattr(p, "__len__") or not hasattr(p, "parameters") else [p]
    wanted = q if isinstance(q, int) else len(found) if q is None else len(q)
    found = found * wanted if len(found) == 1 else found
    if len(found) != wanted:
        raise AssertionError(f"fastai: {len(found)} values where {wanted} are wanted: {found}")
    return found


def recurse(func: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
    """``func`` of everything in lists and dicts."""
    if is_listy(x):
        return [recurse(func, one, *args, **kwargs) for one in x]
    if is_dict(x):
        return {key: recurse(func, one, *args, **kwargs) for key, one in x.items()}
    return func(x, *args, **kwargs)


def uniqueify(x: Iterable[Any], sort: bool = False) -> list[Any]:
    found = list(dict.fromkeys(x))
    return sorted(found) if sort else found


def chunks(x: Any, n: int) -> Iterator[Any]:
    return (x[start : start + n] for start in range(0, len(x), n))


def partition(a: Any, sz: int) -> list[Any]:
    return list(chunks(a, sz))


def range_of(x: Any) -> list[int]:
    return list(range(len(x)))


def to_int(b: Any) -> Any:
    return recurse(int, b)


def is1d(a: Any) -> bool:
    return np.ndim(a) == 1


def idx_dict(a: Iterable[Any]) -> dict[Any, int]:
    return {value: number for number, value in enumerate(a)}


def even_mults(start: float, stop: float, n: int) -> Any:
    """``n`` numbers from ``start`` to ``stop`` by equal factors."""
    return np.geomspace(start, stop, n)


def split_kwargs_by_func(kwargs: dict[str, Any], func: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those that ``func`` takes, and the others."""
    takes = inspect.signature(func).parameters
    return ({k: v for k, v in kwargs.items() if k in takes}, {k: v for k, v in kwargs.items() if k not in takes})


def num_cpus() -> int:
    return os.cpu_count() or 1


def camel2snake(name: str) -> str:
    """
    >>> camel2snake("EarlyStoppingCallback")
    'early_stopping_callback'
    """
    return re.sub("([a-z0-9])([A-Z])", r"\1_\2", re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)).lower()
