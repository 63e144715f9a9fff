"""What several processes logged in the iterations of a pass, put together as the pass ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Parts = Mapping[str, tuple[str, float, int]]
"""For each name how its values become one, their sum or value, and the weight of that."""


def over_ranks(everyone: list[Parts], last: Mapping[str, float]) -> dict[str, Any]:
    """One value for each name that any process logged. A process that did not log it has no weight. Of "last" it is the
    value of the first process that has one, unless ``last`` has the mean of all of them.

    >>> first = {"a": ("mean", 6.0, 2), "b": ("last", 1.0, 0)}
    >>> over_ranks([first, {"a": ("mean", 6.0, 4), "b": ("last", 2.0, 0), "c": ("max", 3.0, 0)}], {})
    {'a': 2.0, 'b': 1.0, 'c': 3.0}
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for one in everyone for name in one):
        parts = [one[name] for one in everyone if name in one]
        numbers = [number for _, number, _ in parts]
        how = parts[0][0]
        if how == "mean":
            found[name] = sum(numbers) / sum(weight for _, _, weight in parts)
        elif how == "last":
            found[name] = last.get(name, numbers[0])
        elif how == "sum" or any(map(math.isnan, numbers)):
            found[name] = sum(numbers)
        else:
            found[name] = max(numbers) if how == "max" else min(numbers)
    return found
