"""A long curve in few points that looks the same: of each stretch the least and the greatest value are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence


def thinned(x: Sequence[float], y: Sequence[float], most: int) -> tuple[list[float], list[float | None]]:
    """At most ``most`` points of a curve; a value that is not finite becomes None, a gap.

    >>> thinned([1, 2, 3, 4, 5, 6], [5.0, 1.0, 2.0, 9.0, 3.0, float("nan")], 4)
    ([1, 2, 4, 5], [5.0, 1.0, 9.0, 3.0])
    """
    if len(x) <= most:
        return list(x), [_short(value) for value in y]
    size = math.ceil(2 * len(x) / max(most, 2))
    kept: list[int] = []
    for start in range(0, len(x), size):
        stretch = range(start, min(start + size, len(x)))
        finite = [index for index in stretch if math.isfinite(y[index])]
        if finite:
            ends = {min(finite, key=y.__getitem__), max(finite, key=y.__getitem__)}
            kept.extend(sorted(ends))
        else:
            kept.append(start)
    return [x[index] for index in kept], [_short(y[index]) for index in kept]


def _short(value: float) -> float | None:
    """Six digits, more than a screen shows."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
