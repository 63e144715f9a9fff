"""The rows of runs as curves, those of one family in one panel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cadenza.callbacks.showing.plot_series import family_of, loader_names, thinned
from cadenza.experiment.records import PLACES, Record, is_whole

POINTS = 120_000
"""So many points all curves of a page have together, at most; it is what keeps the file small."""
_LEAST, _MOST = 100, 4_000


class Curve:
    """The values of one metric of one run over the steps."""

    def __init__(self, run: int, name: str) -> None:
        self.run, self.name = run, name
        self.x: list[float] = []
        self.y: list[float] = []

    def add(self, step: float, value: float) -> None:
        if self.x and self.x[-1] == step:
            self.y[-1] = value  # an epoch's mean, where the last iteration was logged too
        else:
            self.x.append(step)
            self.y.append(value)

    def as_dict(self, most: int) -> dict[str, Any]:
        x, y = thinned(self.x, self.y, most)
        return {"run": self.run, "name": self.name, "x": x, "y": y}


def curves_of(number: int, record: Record) -> list[Curve]:
    """The curves of one run. What was measured over an epoch, or a pass, is apart from what iterations logged by that
    name; of an evaluation, whose iterations are all at one step, there is only the former."""
    found: dict[str, Curve] = {}
    whole = {name for row in record.rows if is_whole(row) for name in row if name not in PLACES}
    for row in record.rows:
        step = row.get("step")
        if not isinstance(step, int):
            continue
        for name, value in row.items():
            if name not in PLACES and isinstance(value, int | float):
                inner = name in whole and not is_whole(row)
                if inner and row.get("stage") != "train":
                    continue
                label = f"{name} (batches)" if inner else name
                found.setdefault(label, Curve(number, label)).add(step, value)
    return list(found.values())


def panels(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One panel for each family, with its section: "curves", "rate" or "speed"; losses first."""
    curves = [curve for number, record in enumerate(records) for curve in curves_of(number, record)]
    most = min(max(POINTS // max(len(curves), 1), _LEAST), _MOST)
    loaders = loader_names(curve.name for curve in curves)
    found: dict[str, list[Curve]] = {}
    for curve in curves:
        found.setdefault(family_of(curve.name.removesuffix(" (batches)"), loaders), []).append(curve)
    ordered = sorted(found.items(), key=lambda item: _rank(item[0]))
    return [
        {"title": family, "section": section_of(family), "curves": [curve.as_dict(most) for curve in members]}
        for family, members in ordered
    ]


def _rank(family: str) -> int:
    return 0 if family == "loss" else 1 if family.endswith("loss") else 2 if "accuracy" in family else 3


def section_of(family: str) -> str:
    """Where a panel stands.

    >>> section_of("lr/0/1"), section_of("samples_per_second"), section_of("accuracy")
    ('rate', 'speed', 'curves')
    """
    first = family.split("/")[0]
    if first in ("lr", "momentum"):
        return "rate"
    return "speed" if family.endswith("_per_second") or family in ("seconds",) else "curves"


def axes(records: Sequence[Record]) -> list[dict[str, list[list[float | None]]]]:
    """For each run how steps are turned into epochs and seconds: a few places of both."""
    return [{"epoch": _axis(record, "epoch"), "seconds": _axis(record, "clock_seconds")} for record in records]


def _axis(record: Record, name: str) -> list[list[float | None]]:
    steps, values = [0.0], [0.0]
    for row in record.epoch_rows if name == "epoch" else record.rows:
        step, value = row.get("step"), row.get(name)
        if isinstance(step, int) and isinstance(value, int | float) and step > steps[-1]:
            steps.append(step)
            values.append(value + 1 if name == "epoch" else value)
    every = max(len(steps) // 500, 1)
    return [[*steps[::every], steps[-1]], [*values[::every], values[-1]]]
