"""A long curve in few points that looks the same."""

from __future__ import annotations

import math
from collections.abc import Sequence


def stretches(count: int, most: float) -> list[range]:
    """The indices of ``count`` points in at most ``most`` stretches, all of one length but the last.

    >>> stretches(5, 2)
    [range(0, 3), range(3, 5)]
    """
    size = math.ceil(count / most)
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def thinned(x: Sequence[float], y: Sequence[float], most: int) -> tuple[list[float], list[float | None]]:
    """At most ``most`` points of a curve: the least and the greatest value of each stretch. One that is not finite
    becomes None, a gap.

    >>> thinned([1, 2, 3, 4, 5, 6], [5.0, 1.0, 2.0, 9.0, 3.0, float("nan")], 4)
    ([1, 2, 4, 5], [5.0, 1.0, 9.0, 3.0])
    """
    if len(x) <= most:
        return list(x), [_short(value) for value in y]
    kept: list[int] = []
    for stretch in stretches(len(x), max(most, 2) / 2):
        finite = [index for index in stretch if math.isfinite(y[index])]
        if finite:
            ends = {min(finite, key=y.__getitem__), max(finite, key=y.__getitem__)}
            kept.extend(sorted(ends))
        else:
            kept.append(stretch[0])
    return [x[index] for index in kept], [_short(y[index]) for index in kept]


def _short(value: float) -> float | None:
    """Six digits, more than a screen shows."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
