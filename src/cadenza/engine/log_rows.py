"""Logging: values go into the row of this iteration or of this epoch."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from torch import Tensor

from cadenza.clock import Clock
from cadenza.engine.dispatch import fire
from cadenza.engine.requests import Requests
from cadenza.engine.stack import Pass
from cadenza.history import PLACES, History, Metrics, Row
from cadenza.points import POINTS

if TYPE_CHECKING:
    from cadenza.engine.stack import Frame
    from cadenza.plan import Plan


class Rows(Requests):
    """The part of a run that writes the history: one row an iteration, one an epoch, one a nested validation."""

    clock: Clock
    epoch: int
    history: History
    metrics: Metrics
    stage: str | None
    row: Row | None
    _open: list[Frame]
    _plan: Plan

    def __init__(self) -> None:
        super().__init__()
        self.row = None
        self._first_row_of_epoch = 0
        self._rows: dict[str, Row | None] = {"iter": None, "pass": None, "epoch": None}

    def log(self, name: str, value: float | Tensor, *, over_ranks: str | None = None) -> None:
        """Writes one value into this iteration's row, or outside an iteration into the epoch's.

        A tensor stays on its device until somebody reads it. Under many processes it is rank 0's value, unless
        ``over_ranks="mean"``; the mean of what is logged in an iteration is known when its pass ends.
        """
        if over_ranks not in (None, "mean"):
            raise ValueError(f'over_ranks is None or "mean", not {over_ranks!r}')
        if name in PLACES:
            raise ValueError(f"{name!r} says where a row was written and cannot be the name of a metric")
        if over_ranks is not None and not self._pass.iterating:
            value = self._processes.log_now(self, name, value)  # type: ignore[arg-type]
        self.metrics[name] = value
        self._current_row()[name] = self.metrics.raw()[name]
        if over_ranks is not None and self._pass.iterating:
            self._processes.log_later(self._current_row(), name, self._pass.index)

    @property
    def rows_of_epoch(self) -> list[Row]:
        """The rows that were written since the epoch began; in a resumed one those before the interruption too."""
        return self.history.rows[self._first_row_of_epoch :]

    def measured(self, name: str) -> bool:
        """Whether ``name`` was logged in this epoch, so that its value is new."""
        return any(name in row for row in self.rows_of_epoch)

    def is_measured_now(self, name: str) -> bool:
        """Whether ``name`` was logged since the last step, so that its value is that of the weights as they are."""
        if name not in self.metrics:
            return False
        rows, now, whole = self.history.rows, self.clock.steps, self._rows["epoch"]
        if self.stage == "train":  # in mid-epoch, where this is asked after each iteration
            newest = takewhile(lambda row: row.at["step"] == now, (row for row in reversed(rows) if row is not whole))
            return any(name in row for row in newest)
        return any(name in row and (row is whole or row.at["step"] == now) for row in rows[self._first_row_of_epoch :])

    def _current_row(self) -> Row:
        kind = self._kind_of_row()
        row = self._rows[kind]
        if row is None:
            row = self._rows[kind] = self._new_row(kind)
        return row

    def _kind_of_row(self) -> str:
        if self._pass.iterating:
            return "iter"
        outer = self._open[-2] if len(self._open) > 1 else None
        return "pass" if isinstance(outer, Pass) and outer.iterating else "epoch"

    def _new_row(self, kind: str) -> Row:
        if self.mode != "fit" and kind == "epoch":
            return self.history.add("epoch", mode=self.mode)
        at = {"epoch": self.epoch, "step": self.clock.steps, "batch": self.clock.batches}
        if kind == "epoch":
            return self.history.add("epoch", **at)
        return self.history.add("iter", stage=self.stage, **at)

    def _write_row(self, kind: str) -> None:
        """The row is complete: tells those who listen, and lets it go."""
        self.row, self._rows[kind] = self._rows[kind], None
        if self.row is None:
            return
        if self.mode == "fit":
            self.row.at.update(step=self.clock.steps, batch=self.clock.batches)
        self.row.complete = True
        if self._plan.after_log:
            fire(self, POINTS["after_log"], self._plan.after_log)  # type: ignore[arg-type]
        self.row = None
