"""Where a schedule is: in its warm-up, on its curve, or in its cool-down. All formulas of the schedules are here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from cadenza.callbacks.rates.curves import COUNT, PROGRESS
from cadenza.clock import Duration
from cadenza.foundation.arguments import at_least_zero, ratio

if TYPE_CHECKING:
    from cadenza.run import Run

UNIT = {"step": "steps", "epoch": "epochs"}


class Placing(TypedDict, total=False):
    """The arguments that all schedules share; ``Schedule`` says what they mean."""

    cadence: str | None
    warmup: str | Duration | None
    warmup_from: float | None
    cooldown: str | Duration | None
    cooldown_to: float | None
    length: str | Duration | None
    optimizer: int | None
    groups: Sequence[int | str] | None


@dataclass(frozen=True)
class Course:
    """What the user said about the time of a schedule. ``timetable`` makes numbers of it."""

    of: str
    cadence: str
    warmup: Duration | None
    warmup_from: float | None
    cooldown: Duration | None
    cooldown_to: float | None
    length: Duration | None

    @classmethod
    def read(cls, of: str, placing: Placing) -> Course:
        cadence = placing.get("cadence")
        if cadence is None and of == PROGRESS:
            cadence = "step"
        if not isinstance(cadence, str) or cadence not in UNIT:
            raise ValueError(f'cadence is "step" or "epoch": say which one the schedule counts, not {cadence!r}')
        warmup, cooldown = _duration("warmup", placing.get("warmup")), _duration("cooldown", placing.get("cooldown"))
        length = _duration("length", placing.get("length"))
        start, end = placing.get("warmup_from"), placing.get("cooldown_to")
        if start is not None:
            ratio("warmup_from", start)
            if warmup is None:
                raise ValueError(f'warmup_from={start!r} needs a warmup, such as warmup="500 steps"')
        if end is not None:
            at_least_zero("cooldown_to", end, "must be a number")
            if cooldown is None:
                raise ValueError(f'cooldown_to={end!r} needs a cooldown, such as cooldown="1 epoch"')
        if length is not None and of == COUNT and cooldown is None:
            raise ValueError("this schedule goes by a count, not by a length: length needs a cooldown as well")
        return cls(of, cadence, warmup, start, cooldown, end, length)

    @property
    def has_end(self) -> bool:
        """Whether the formula holds a total length."""
        return self.of == PROGRESS or self.cooldown is not None

    @property
    def spans_fit(self) -> bool:
        """Whether each fit is a schedule of its own; otherwise one goes on over all fits."""
        return self.has_end and self.length is None

    def timetable(self, total: Duration | None, steps_per_epoch: Callable[[], int]) -> Timetable:
        """The formula with its numbers. ``total`` is how long the fit is; what cannot be known is refused."""
        unit = UNIT[self.cadence]

        def count(duration: Duration, wanted: str) -> float:
            if duration.unit == wanted:
                return duration.amount
            per_epoch = steps_per_epoch()
            return duration.amount * per_epoch if wanted == "steps" else duration.amount / per_epoch

        warmup_unit, cooldown_unit = self._ramp_unit(self.warmup), self._ramp_unit(self.cooldown)
        begin, end, cooldown_begin, cooldown = 0.0, float("inf"), float("inf"), 0.0
        if self.warmup is not None and self.of == PROGRESS:
            begin = count(self.warmup, unit)
        if self.has_end and total is not None:
            end = count(total, unit)
            if self.cooldown is not None:
                cooldown = count(self.cooldown, cooldown_unit)
                cooldown_begin = count(total, cooldown_unit) - cooldown
                end -= count(self.cooldown, unit)
            if end <= begin:
                parts = [f"the {n} of {d}" for n, d in (("warm-up", self.warmup), ("cool-down", self.cooldown)) if d]
                raise ValueError(f"{' and '.join(parts)} leave nothing of the {total} that the schedule is long")
        return Timetable(
            cadence=unit,
            by_progress=self.of == PROGRESS,
            begin=begin,
            end=end,
            warmup=0 if self.warmup is None else count(self.warmup, warmup_unit),
            warmup_unit=warmup_unit,
            warmup_from=self.warmup_from,
            cooldown_begin=cooldown_begin,
            cooldown=cooldown,
            cooldown_unit=cooldown_unit,
            cooldown_to=self.cooldown_to,
        )

    def _ramp_unit(self, duration: Duration | None) -> str:
        """A ramp moves with every step, unless everything is said in epochs."""
        by_epochs = self.cadence == "epoch" and (duration is None or duration.unit == "epochs")
        return "epochs" if by_epochs else "steps"

    def words(self) -> str:
        parts = [] if self.warmup is None else [f"warm-up of {self.warmup}"]
        if self.cooldown is not None:
            to = "" if self.cooldown_to is None else f" to {self.cooldown_to:g}"
            parts.append(f"cool-down of {self.cooldown}{to}")
        if self.has_end:
            parts.append("over each fit" if self.length is None else f"over {self.length}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Timetable:
    """The formula: from the steps and epochs that came before to the place on the curve and to the factor."""

    cadence: str
    by_progress: bool
    begin: float
    end: float
    warmup: float
    warmup_unit: str
    warmup_from: float | None
    cooldown_begin: float
    cooldown: float
    cooldown_unit: str
    cooldown_to: float | None

    def place(self, steps: int, epochs: int) -> float:
        """The x of the curve."""
        count = steps if self.cadence == "steps" else epochs
        if not self.by_progress:
            return min(count, self.end)
        return min(max((count - self.begin) / (self.end - self.begin), 0.0), 1.0)

    def factor(self, value: float, steps: int, epochs: int) -> float:
        """What the initial learning rate is multiplied with, where the curve has ``value``."""
        count = steps if self.warmup_unit == "steps" else epochs
        if count < self.warmup:
            value *= self._warmth(count)
        if self.cooldown_to is not None:
            count = steps if self.cooldown_unit == "steps" else epochs
            if count > self.cooldown_begin:
                value += (self.cooldown_to - value) * min((count - self.cooldown_begin) / self.cooldown, 1.0)
        return value

    def _warmth(self, count: int) -> float:
        if self.warmup_from is None:
            return (count + 1) / (self.warmup + 1)
        return self.warmup_from + (1 - self.warmup_from) * count / self.warmup


def _duration(name: str, text: str | Duration | None) -> Duration | None:
    if text is None:
        return None
    duration = Duration.interval(text, name) if name == "length" else Duration.parse(text, name)
    if duration.unit not in ("steps", "epochs"):
        raise ValueError(f'{name} is given in steps or epochs, such as "500 steps" or "2 epochs", not {text!r}')
    return duration if duration.amount else None


# What a run knows of its length -------------------------------------------------------------------------------------


def length_of_fit(run: Run, began: tuple[int, int]) -> Duration:
    """How long the fit is that began at ``began`` steps and epochs on the clock."""
    if run.num_steps is not None:
        return Duration(run.num_steps - began[0], "steps")
    if run.num_epochs is not None:
        return Duration(run.num_epochs - began[1], "epochs")
    raise ValueError('this fit has no known length: give the schedule length="1000 steps"')
