"""The shapes of a learning rate, as plain functions of one number. Usable in a loop of your own:

>>> half_way = Cosine(final_ratio=0.1)(0.5)
>>> round(half_way, 3)
0.55
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cadenza.foundation.arguments import below_one, check, is_number, is_whole, positive, ratio, whole

PROGRESS, COUNT = "progress", "count"


class Curve:
    """The factor of the initial learning rate, and where there is one the momentum, as functions of ``x``.

    ``of`` says what x is: "progress" from 0 at the beginning to 1 at the end, or "count", the number of steps or epochs
    that came before.
    """

    of: str = PROGRESS
    min_lr: float = 0.0
    """No learning rate is made lower than this."""
    checks_metric: bool = False
    """Whether it moves by a metric and not by the time."""

    def __call__(self, x: float) -> float:
        raise NotImplementedError

    def momentum(self, x: float) -> float | None:
        """The momentum at ``x``; None everywhere if this curve leaves it alone."""
        return None

    def words(self) -> str:
        """The curve in a few words, for ``trainer.explain()``."""
        return type(self).__name__.lower()


def cosine(start: float, end: float, x: float) -> float:
    """Half a cosine wave from ``start`` at x = 0 to ``end`` at x = 1."""
    return end + (start - end) * (1 + math.cos(math.pi * x)) / 2


@dataclass(frozen=True)
class Constant(Curve):
    """1 all the time: for a warm-up or a cool-down alone."""

    of = COUNT

    def __call__(self, x: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Step(Curve):
    """``gamma ** (count // size)``."""

    size: int
    gamma: float = 0.1
    of = COUNT

    def __post_init__(self) -> None:
        whole("size", self.size, 1)
        positive("gamma", self.gamma)

    def __call__(self, x: float) -> float:
        return float(self.gamma ** (x // self.size))

    def words(self) -> str:
        return f"times {self.gamma:g} after each {self.size}"


@dataclass(frozen=True)
class MultiStep(Curve):
    """``gamma ** (number of milestones that count has reached)``."""

    milestones: Sequence[int]
    gamma: float = 0.1
    of = COUNT

    def __post_init__(self) -> None:
        if not isinstance(self.milestones, Sequence) or isinstance(self.milestones, str) or not self.milestones:
            raise ValueError(f"milestones is a list of whole numbers, not {self.milestones!r}")
        if not all(is_whole(milestone, 1) for milestone in self.milestones):
            raise ValueError(f"milestones are whole numbers of at least 1, not {self.milestones!r}")
        object.__setattr__(self, "milestones", tuple(sorted(self.milestones)))
        positive("gamma", self.gamma)

    def __call__(self, x: float) -> float:
        return self.gamma ** bisect_right(self.milestones, x)

    def words(self) -> str:
        return f"times {self.gamma:g} at {', '.join(map(str, self.milestones))}"


@dataclass(frozen=True)
class Exponential(Curve):
    """``gamma ** count``."""

    gamma: float
    of = COUNT

    def __post_init__(self) -> None:
        positive("gamma", self.gamma)

    def __call__(self, x: float) -> float:
        return float(self.gamma**x)

    def words(self) -> str:
        return f"times {self.gamma:g} each time"


@dataclass(frozen=True)
class Polynomial(Curve):
    """``final_ratio + (1 - final_ratio) * (1 - progress) ** power``; power 1 is a straight line."""

    power: float = 1.0
    final_ratio: float = 0.0

    def __post_init__(self) -> None:
        positive("power", self.power)
        ratio("final_ratio", self.final_ratio)

    def __call__(self, x: float) -> float:
        return float(self.final_ratio + (1 - self.final_ratio) * (1 - x) ** self.power)

    def words(self) -> str:
        return f"polynomial of power {self.power:g} to {self.final_ratio:g}"


@dataclass(frozen=True)
class Cosine(Curve):
    """``final_ratio + (1 - final_ratio) * (1 + cos(pi * progress)) / 2``."""

    final_ratio: float = 0.0

    def __post_init__(self) -> None:
        ratio("final_ratio", self.final_ratio)

    def __call__(self, x: float) -> float:
        return cosine(1.0, self.final_ratio, x)

    def words(self) -> str:
        return f"cosine to {self.final_ratio:g}"


@dataclass(frozen=True)
class FlatCosine(Curve):
    """1 until ``start`` of the progress, then half a cosine wave to ``final_ratio``."""

    start: float = 0.72
    final_ratio: float = 0.0

    def __post_init__(self) -> None:
        below_one("start", self.start)
        ratio("final_ratio", self.final_ratio)

    def __call__(self, x: float) -> float:
        return 1.0 if x < self.start else cosine(1.0, self.final_ratio, (x - self.start) / (1 - self.start))

    def words(self) -> str:
        return f"flat until {self.start:g} of it, then cosine to {self.final_ratio:g}"


@dataclass(frozen=True)
class OneCycle(Curve):
    """Up and down again: half a cosine wave from ``1 / div_factor`` to 1 until ``pct_start`` of the progress, then one
    from 1 to ``1 / (div_factor * final_div_factor)``. The momentum goes the other way, between its two values."""

    pct_start: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    cycled: tuple[float, float] | None = (0.95, 0.85)

    def __post_init__(self) -> None:
        below_one("pct_start", self.pct_start)
        positive("div_factor", self.div_factor)
        positive("final_div_factor", self.final_div_factor)
        if self.cycled is not None:
            pair = isinstance(self.cycled, Sequence) and len(self.cycled) == 2
            if not pair or not all(is_number(value) and 0 <= value < 1 for value in self.cycled):
                raise ValueError(
                    "momentum is its outer and its inner value, each from 0 up to, but not including, 1, such as "
                    f"(0.95, 0.85), or None, not {self.cycled!r}"
                )
            object.__setattr__(self, "cycled", tuple(self.cycled))

    def __call__(self, x: float) -> float:
        return self._cycle(x, 1 / self.div_factor, 1.0, 1 / (self.div_factor * self.final_div_factor))

    def momentum(self, x: float) -> float | None:
        return None if self.cycled is None else self._cycle(x, self.cycled[0], self.cycled[1], self.cycled[0])

    def _cycle(self, x: float, first: float, middle: float, last: float) -> float:
        if x < self.pct_start:
            return cosine(first, middle, x / self.pct_start)
        return cosine(middle, last, (x - self.pct_start) / (1 - self.pct_start))

    def words(self) -> str:
        momentum = "" if self.cycled is None else f", momentum from {self.cycled[0]:g} to {self.cycled[1]:g} and back"
        return f"one cycle with its top at {self.pct_start:g} of it{momentum}"


@dataclass(frozen=True)
class Function(Curve):
    """A function of your own."""

    function: Callable[[float], float]
    of: str = PROGRESS

    def __post_init__(self) -> None:
        if not callable(self.function):
            is_torchs = hasattr(self.function, "step")
            how = 'Schedule(torch=lambda optimizer: StepLR(optimizer, 10), cadence="epoch")'
            hint = f"; a scheduler of torch is made by a function: {how}" if is_torchs else ""
            raise TypeError(f"function is a function of one number that gives one, not {self.function!r}{hint}")
        check(self.of in (PROGRESS, COUNT), 'of says what the function is one of: "progress" or "count"', self.of)

    def __call__(self, x: float) -> float:
        value = float(self.function(x))
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"the function of a schedule gave {value} at {x:g}; it must be finite and at least 0")
        return value

    def words(self) -> str:
        return f"{getattr(self.function, '__name__', type(self.function).__name__)} of the {self.of}"
