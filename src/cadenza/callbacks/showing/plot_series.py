"""The rows of a history as series that can be drawn: metrics of one family together, train beside val."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby

from cadenza.history import History, Row
from cadenza.points import STAGES

BATCHES = " (batches)"
"""What the values of single iterations have behind their name where there are those of epochs too."""
_TOGETHER = {"_ms": "ms", "_per_second": "per second"}
"""Families of one unit that share a panel, by the end of their names."""


@dataclass
class Series:
    """The values of one metric, each with the place at which it was measured."""

    name: str
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)

    def best(self, mode: str) -> tuple[float, float] | None:
        """Place and value of the first best one; None if none is finite.

        >>> Series("loss", [1, 2, 3], [0.5, 0.3, 0.3]).best("min")
        (2, 0.3)
        """
        finite = [(x, y) for x, y in zip(self.x, self.y, strict=True) if math.isfinite(y)]
        if not finite:
            return None
        return min(finite, key=lambda point: point[1] if mode == "min" else -point[1])


@dataclass
class Family:
    """The series that are drawn together, and what their places count: "epochs" or "steps"."""

    name: str
    unit: str
    series: list[Series] = field(default_factory=list)


def families(history: History, metrics: Sequence[str] | None = None) -> list[Family]:
    """The families in order of appearance, losses first. ``metrics`` are names or patterns such as ``"val/*"``.

    A family that was measured once an epoch lies over the epochs that were done, and what was measured within an epoch
    at the fraction of it; one that was only logged in iterations lies over the steps. What training iterations logged
    of a metric that has a value over the epoch is a series of its own, with "(batches)" behind the name.
    """
    history.settle()
    names = dict.fromkeys(name for row in history.rows for name in row.raw())
    chosen = [name for name in names if metrics is None or any(fnmatchcase(name, one) for one in metrics)]
    loaders = loader_names(names)
    groups: dict[str, list[str]] = {}
    for name in sorted(chosen, key=lambda name: family_of(name, loaders) != "loss"):
        groups.setdefault(panel_of(name, loaders), []).append(name)
    timeline = _Timeline(history)
    return [_family(history.rows, family, members, timeline) for family, members in groups.items()]


def loader_names(names: Iterable[str]) -> set[str]:
    """The loaders that have names: each has measured its loss, such as ``val/night/loss``."""
    parts = (name.split("/") for name in names)
    return {"/".join(p[1:-1]) for p in parts if len(p) > 2 and p[0] in STAGES and p[-1] == "loss"}


def family_of(name: str, loaders: Iterable[str] = ()) -> str:
    """What is measured, without where.

    >>> family_of("val/loss"), family_of("val/night/accuracy", {"night"}), family_of("lr")
    ('loss', 'accuracy', 'lr')
    """
    stage, _, rest = name.partition("/")
    if stage not in STAGES or not rest:
        return name
    for loader in loaders:
        if rest.startswith(f"{loader}/"):
            return rest.removeprefix(f"{loader}/")
    return rest


def panel_of(name: str, loaders: Iterable[str] = ()) -> str:
    """The family, but times are drawn together, and so are rates: what matters is how they compare.

    >>> panel_of("train/forward_ms"), panel_of("train/samples_per_second"), panel_of("val/loss")
    ('ms', 'per second', 'loss')
    """
    family = family_of(name, loaders)
    return next((panel for end, panel in _TOGETHER.items() if family.endswith(end)), family)


def _family(rows: list[Row], family: str, names: list[str], timeline: _Timeline) -> Family:
    by_epoch = any(row.kind == "epoch" and name in row for row in rows for name in names)
    result = Family(family, "epochs" if by_epoch else "steps")
    for name in names:
        for label, chosen in _rows_of(rows, name).items():
            points = [(timeline.place(row, by_epoch), row[name]) for row in chosen]
            result.series.append(_averaged(label, sorted(points, key=lambda point: point[0])))
    return result


def _averaged(name: str, points: list[tuple[float, float]]) -> Series:
    """The series of ``points`` with one value at each place."""
    series = Series(name)
    for x, same in groupby(points, key=lambda point: point[0]):
        values = [y for _, y in same]
        series.x.append(x)
        series.y.append(sum(values) / len(values))
    return series


def _rows_of(rows: list[Row], name: str) -> dict[str, list[Row]]:
    """The rows of one metric, those of iterations apart. Of an evaluation these are all at one step, and left out."""
    found = [row for row in rows if name in row]
    whole = [row for row in found if row.whole]
    inside = [row for row in found if not row.whole and row.at.get("stage") == "train"]
    if not whole:
        return {name: found}
    return {name: whole} | ({f"{name}{BATCHES}": inside} if inside else {})


class _Timeline:
    """Where a row lies in the training."""

    def __init__(self, history: History) -> None:
        self.last: dict[int, int] = {}
        """For each epoch the number of steps up to its end, or up to the last row that tells."""
        for row in history.rows:
            epoch, step = row.at.get("epoch"), row.at.get("step")
            if isinstance(epoch, int) and isinstance(step, int):
                self.last[epoch] = max(step, self.last.get(epoch, 0))

    def place(self, row: Row, by_epoch: bool) -> float:
        epoch, step = row.at.get("epoch"), row.at.get("step")
        if not isinstance(epoch, int) or not isinstance(step, int):
            return 0.0
        if not by_epoch:
            return float(step)
        if row.kind == "epoch":
            return epoch + 1.0
        before = self.last.get(epoch - 1, 0)
        return epoch + min(max((step - before) / max(self.last[epoch] - before, 1), 0.0), 1.0)


def banded(series: Series, most: int = 1000) -> tuple[Series, list[float], list[float]]:
    """A series of at most ``most`` means, with the least and the greatest value behind each.

    >>> banded(Series("loss", [1, 2, 3, 4], [4.0, 2.0, 1.0, 3.0]), most=2)
    (Series(name='loss', x=[1.5, 3.5], y=[3.0, 2.0]), [2.0, 1.0], [4.0, 3.0])
    """
    if len(series.x) <= most:
        return series, series.y, series.y
    means, low, high = Series(series.name), [], []
    for part in stretches(len(series.x), most):
        x, y = series.x[part.start : part.stop], series.y[part.start : part.stop]
        finite = [value for value in y if math.isfinite(value)]
        means.x.append(sum(x) / len(x))
        means.y.append(sum(finite) / len(finite) if finite else math.nan)
        low.append(min(finite, default=math.nan))
        high.append(max(finite, default=math.nan))
    return means, low, high


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
