"""Logging: values go into the row of this iteration or of this epoch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from torch import Tensor

from cadenza.clock import Clock
from cadenza.engine.dispatch import fire
from cadenza.engine.requests import Requests
from cadenza.engine.running_mean import WAYS
from cadenza.engine.stack import Pass
from cadenza.history import PLACES, History, Metrics, Row, as_scalar
from cadenza.points import POINTS, STAGES


class Rows(Requests):
    """The part of a run that writes the history: one row an iteration, one an epoch, one a nested validation."""

    clock: Clock
    epoch: int
    history: History
    metrics: Metrics
    row: Row | None

    def log(
        self,
        name: str | Mapping[str, float | Tensor],
        value: float | Tensor | None = None,
        *,
        over: str = "mean",
        over_ranks: str | None = None,
    ) -> None:
        """Writes one value, or each of a dict, into this iteration's row, or outside an iteration into the epoch's.

        What is logged in iterations also gets one value over their pass, which goes into the row of the epoch: the mean
        weighted by samples, or the one that ``over`` names: "last", "sum", "max" or "min". ``run.metrics`` has the
        latest value during the pass, and that over the pass from its end on.

        A tensor stays on its device until somebody reads it. Under many processes the row of an iteration has rank 0's
        value, unless ``over_ranks="mean"``; the mean of what is logged in an iteration is known when its pass ends. The
        value over the pass is that of all ranks which logged it.
        """
        if over not in WAYS:
            raise ValueError(f'over is "mean", "last", "sum", "max" or "min", not {over!r}')
        if over_ranks not in (None, "mean"):
            raise ValueError(f'over_ranks is None or "mean", not {over_ranks!r}')
        inside = self._state.current.iterating
        for one, number in ({name: value} if isinstance(name, str) else several(name, value)).items():
            if one in PLACES:
                raise ValueError(f"{one!r} says where a row was written and cannot be the name of a metric")
            if over_ranks is not None and not inside:
                number = self._state.processes.log_now(self, one, number)  # type: ignore[arg-type]
            scalar = as_scalar(one, number)
            if inside and self._state.current.logged.over.setdefault(one, over) != over and one not in _LOSSES:
                raise ValueError(
                    f"{one!r} is logged with over={over!r} here, and elsewhere in this pass with over="
                    f"{self._state.current.logged.over[one]!r}: give it the same everywhere, or another name"
                )
            self.metrics.put(one, scalar)
            self._current_row().put(one, scalar)
            if over_ranks is not None and inside:
                self._state.processes.log_later(self._current_row(), one, self._state.current.index)

    def _log_over_pass(self, prefix: str, mean: Tensor | None, logged: dict[str, Any], *, counts: bool) -> None:
        """As a pass ends: its mean loss, if it ``counts``, and the values over it of what its iterations logged."""
        own = f"{prefix}loss"
        if mean is not None and counts:
            self.log(own, mean)
        row = self._state.rows[self._kind_of_row()]
        for name in {own, *_LOSSES} & logged.keys():
            if row is not None and name in row:  # it is the engine's, whoever else logs by that name
                del logged[name]
                self.metrics.put(name, row.raw()[name])
            elif name == own and mean is not None:  # of an evaluation that was broken off there is none
                del logged[name], self.metrics[name]
        if logged:
            self.log(logged)

    @property
    def open_row(self) -> dict[str, float] | None:
        """What was logged so far into the row that outlives this iteration: that of the epoch or of a nested pass."""
        row = self._state.rows[self._kind_of_row()]
        return None if row is None else dict(row)

    @property
    def rows_of_epoch(self) -> list[Row]:
        """The rows that were written since the epoch began; in a resumed one those before the interruption too."""
        return self.history.rows[self._state.first_row :]

    def measured(self, name: str) -> bool:
        """Whether ``name`` was logged in this epoch, so that its value is new."""
        return any(name in row for row in self.rows_of_epoch)

    def is_measured_now(self, name: str) -> bool:
        """Whether ``name`` was logged since the last step, so that its value is that of the weights as they are."""
        if name not in self.metrics:
            return False
        rows, now, whole = self.history.rows, self.clock.steps, self._state.rows["epoch"]
        if self.stage == "train":  # in mid-epoch, where this is asked after each iteration
            newest = takewhile(lambda row: row.at["step"] == now, (row for row in reversed(rows) if row is not whole))
            return any(name in row for row in newest)
        return any(name in row and (row is whole or row.at["step"] == now) for row in rows[self._state.first_row :])

    def _current_row(self) -> Row:
        kind = self._kind_of_row()
        row = self._state.rows[kind]
        if row is None:
            row = self._state.rows[kind] = self._new_row(kind)
        return row

    def _kind_of_row(self) -> str:
        if self._state.current.iterating:
            return "iter"
        outer = self._state.frames[-2] if len(self._state.frames) > 1 else None
        return "pass" if isinstance(outer, Pass) and outer.iterating else "epoch"

    def _new_row(self, kind: str) -> Row:
        if self.mode != "fit" and kind == "epoch":
            return self.history.add("epoch", mode=self.mode)
        at = {"epoch": self.epoch, "step": self.clock.steps, "batch": self.clock.batches}
        if kind == "epoch":
            return self.history.add("epoch", **at)
        return self.history.add("iter", stage=self.stage, **({"over": "pass"} if kind == "pass" else {}), **at)

    def _write_row(self, kind: str) -> None:
        """The row is complete: tells those who listen, and lets it go."""
        self.row, self._state.rows[kind] = self._state.rows[kind], None
        if self.row is None:
            return
        if self.mode == "fit":
            self.row.at.update(step=self.clock.steps, batch=self.clock.batches)
        self.row.complete = True
        if self._state.plan.after_log:
            fire(self, POINTS["after_log"], self._state.plan.after_log)  # type: ignore[arg-type]
        self.row = None


_LOSSES = frozenset(f"{stage}/loss" for stage in STAGES)


def several(values: object, value: object) -> Mapping[str, Any]:
    """The values of ``run.log({...})``."""
    if not isinstance(values, Mapping):
        raise TypeError(f"the name of a metric is a text, not {values!r}; several are given as a dict of their values")
    if value is not None:
        raise TypeError("run.log takes the name of a metric and its value, or a dict of several, not both")
    return values
