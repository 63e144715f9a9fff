"""One clock for everything that counts, and durations in its units."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

UNITS = ("batches", "steps", "samples", "tokens", "epochs", "seconds")
_SECONDS = {
    "second": 1.0,
    "sec": 1.0,
    "s": 1.0,
    "minute": 60.0,
    "min": 60.0,
    "hour": 3600.0,
    "h": 3600.0,
    "day": 86400.0,
}
_ALIASES = {"batch": "batches", "iter": "batches", "iteration": "batches"}
_DURATION = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*")


@dataclass(frozen=True)
class Duration:
    """An amount in one unit of the clock.

    >>> Duration.parse("100 steps")
    Duration(amount=100, unit='steps')
    >>> Duration.parse("1.5 minutes")
    Duration(amount=90.0, unit='seconds')
    """

    amount: float
    unit: str

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise ValueError(f"a duration counts {', '.join(UNITS)}, not {self.unit!r}")
        if not self.amount >= 0 or self.amount == float("inf"):
            raise ValueError(f"a duration is a finite number of at least 0, not {self.amount}")

    @classmethod
    def parse(cls, text: str | Duration, name: str = "") -> Duration:
        """Reads ``"500 steps"``, ``"2 epochs"``, ``"1 batch"``, ``"30 minutes"``; ``name`` is what it was given for."""
        if isinstance(text, Duration):
            return text
        said = f"{name}: {text!r}" if name else repr(text)
        match = _DURATION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(
                f'{said} is not a duration: write a number and a unit, such as "100 steps" or "30 minutes"'
            )
        number, word = match[1].replace("_", ""), match[2].lower()
        singular = (
            word if word in ("s", "h") else word.removesuffix("es") if word == "batches" else word.removesuffix("s")
        )
        if singular in _SECONDS:
            return cls(float(number) * _SECONDS[singular], "seconds")
        unit = _ALIASES.get(singular, singular + "s")
        if unit not in UNITS:
            raise ValueError(f"{said}: the unit {match[2]!r} is unknown; use {', '.join(UNITS)}, minutes or hours")
        if "." in number:
            raise ValueError(f"{said}: {unit} are counted in whole numbers")
        return cls(int(number), unit)

    @classmethod
    def interval(cls, text: str | Duration, name: str = "") -> Duration:
        """A duration that something repeats after, so more than none of it."""
        duration = cls.parse(text, name)
        if duration.amount == 0:
            raise ValueError(f"{name or text!r}: an interval must be more than 0 {duration.unit}, not {text!r}")
        return duration

    def __str__(self) -> str:
        whole = self.unit.removesuffix("es") if self.unit == "batches" else self.unit.removesuffix("s")
        number = f"{self.amount:.9f}".rstrip("0").rstrip(".") if isinstance(self.amount, float) else str(self.amount)
        return f"{number} {whole if self.amount == 1 else self.unit}"


class Clock:
    """How far training has come. Only training advances it; it goes on over several fits."""

    __slots__ = ("_elapsed", "_started", "agreed", "batches", "epochs", "samples", "steps", "tokens")

    def __init__(self) -> None:
        self.batches = 0
        self.steps = 0
        self.samples = 0
        self.tokens = 0
        self.epochs = 0
        self._elapsed = 0.0
        self._started: float | None = None
        self.agreed: float | None = None
        """Under many processes: rank 0's time when they last heard of each other, so that all decide alike by it."""

    @property
    def seconds(self) -> float:
        """Wall time spent in ``fit``; under many processes that of rank 0, as all know it."""
        return self.wall if self.agreed is None else self.agreed

    @property
    def wall(self) -> float:
        """Wall time spent in ``fit``, of this process."""
        return self._elapsed + (time.perf_counter() - self._started if self._started is not None else 0.0)

    def start(self) -> None:
        if self._started is None:
            self._started = time.perf_counter()

    def pause(self) -> None:
        self._elapsed, self._started = self.wall, None

    def reached(self, duration: Duration) -> bool:
        """Whether at least ``duration`` has passed since the beginning of training."""
        return float(getattr(self, duration.unit)) >= duration.amount

    def state_dict(self) -> dict[str, float]:
        return {unit: getattr(self, unit) for unit in UNITS}

    def load_state_dict(self, state: dict[str, float]) -> None:
        for unit in UNITS[:-1]:
            setattr(self, unit, int(state[unit]))
        self._elapsed = float(state["seconds"])
        if self.agreed is not None:
            self.agreed = self._elapsed
        if self._started is not None:
            self._started = time.perf_counter()

    def __repr__(self) -> str:
        return f"Clock({', '.join(f'{unit}={getattr(self, unit)}' for unit in UNITS[:-1])}, seconds={self.seconds:.3f})"


class Cadence:
    """Tells when a multiple of an interval has been passed.

    >>> clock, due = Clock(), []
    >>> every = Cadence("2 steps", clock)
    >>> for clock.steps in range(1, 6):
    ...     due.append(every.due())
    >>> due
    [False, True, False, True, False]
    """

    def __init__(self, interval: str | Duration, clock: Clock) -> None:
        self.interval, self.clock = Duration.interval(interval), clock
        self.passed = self._multiples()

    def due(self) -> bool:
        """True once for each multiple that the clock has passed since the last call."""
        before, self.passed = self.passed, self._multiples()
        return self.passed > before

    def is_due(self) -> bool:
        """What ``due`` would return; a later call of ``due`` still returns it."""
        return self._multiples() > self.passed

    def _multiples(self) -> int:
        return int(getattr(self.clock, self.interval.unit) // self.interval.amount)
