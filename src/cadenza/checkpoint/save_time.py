"""How long a save will take, from how long the last ones took."""

from __future__ import annotations

from collections import deque


class Speed:
    """Sizes and seconds of the last few saves.

    >>> speed = Speed()
    >>> speed.seconds(100) is None
    True
    >>> speed.measured(100, 2.0); speed.measured(100, 1.0)
    >>> speed.seconds(300)
    6.0
    """

    def __init__(self, kept: int = 5) -> None:
        self._saves: deque[tuple[int, float]] = deque(maxlen=kept)

    def measured(self, size: int, seconds: float) -> None:
        self._saves.append((size, seconds))

    def seconds(self, size: int) -> float | None:
        """For ``size`` bytes at the slowest rate that was seen, and never less than the slowest of smaller saves."""
        if not self._saves:
            return None
        at_rate = max(seconds / max(saved, 1) for saved, seconds in self._saves) * size
        return max([at_rate, *(seconds for saved, seconds in self._saves if saved <= size)])
