"""Loaders around loaders."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any


class First(Iterable[Any]):
    """The first few batches of a loader.

    >>> list(First([1, 2, 3], 2)), len(First([1], 2))
    ([1, 2], 1)
    """

    def __init__(self, loader: Iterable[Any], count: int) -> None:
        self.loader, self.count = loader, count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.loader), self.count)

    def __len__(self) -> int:
        return min(self.count, len(self.loader))  # type: ignore[arg-type]
