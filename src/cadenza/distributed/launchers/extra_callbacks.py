"""Callbacks that whoever started this process adds to every trainer in it, such as one that reports to Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_makers: list[Callable[[], Any]] = []


@contextmanager
def accompanied(make: Callable[[], Any]) -> Iterator[None]:
    """Every trainer that is made meanwhile gets a callback from ``make``, behind those it was given."""
    _makers.append(make)
    try:
        yield
    finally:
        _makers.remove(make)


def companions() -> list[Any]:
    """One callback from each who accompanies the trainers of this process; an empty list for most.

    >>> with accompanied(lambda: "one more"):
    ...     companions()
    ['one more']
    >>> companions()
    []
    """
    return [make() for make in _makers]
