"""What every tracker has in common: when it is told what, and what happens when it fails."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from cadenza.callback import Callback, Order
from cadenza.experiment.media import Medium
from cadenza.experiment.status import now, state_of
from cadenza.experiment.trackers.delivery import Delivery, Opening, as_call, metrics_of, outbox_place, version
from cadenza.experiment.trackers.outbox import Call
from cadenza.experiment.waiting_rows import WaitingRows
from cadenza.foundation.arguments import one_of, text
from cadenza.foundation.background import Background
from cadenza.history import Row

if TYPE_CHECKING:
    from cadenza.run import Run

__all__ = ["Opening", "Tracker", "metrics_of"]
log = logging.getLogger("cadenza")


class Tracker(Callback):
    """Sends the rows of the history, and what ``run.experiment`` shows, somewhere else. Derive from it, and write
    ``log``; the other methods are for trackers that can show more.

    The training waits for none of these methods: a thread calls them, one after the other, beginning with the first
    row. A tracker that fails or hangs never stops or slows a training. What it has not taken yet is in
    ``unsent-<name>.jsonl`` in the folder of the run and is sent later; one warning says that it failed, and one at the
    end what is left. The end of a run waits until all is sent, but not longer than ``patience`` seconds without
    progress. ``rows`` is "all", "epoch" or "iter". Values of iterations get ``_batch`` behind their name: the name
    itself is that of the value over the epoch.

    >>> class Printer(Tracker):
    ...     def log(self, row):
    ...         print(sorted(row))
    >>> Printer(rows="epoch").rows
    'epoch'
    """

    order = Order.REPORT + 50  # after those who draw
    ranks = "main"
    passive = True
    _begins_anew = True
    patience = 30.0
    """So many seconds the end of a run waits for a tracker that does not move; two minutes in all for one that does."""
    collects = False
    """True if ``log`` and the others only collect, and ``flush`` sends: if it fails, they are called again."""

    def __init__(self, *, project: str | None = None, run_name: str | None = None, rows: str = "all") -> None:
        one_of(f"{self.name}: rows", rows, ("all", "epoch", "iter"))
        for what, given in (("project", project), ("run_name", run_name)):
            if given is not None:
                text(f"{self.name}: {what}", given, "a text that is not empty, or None")
        self.project, self.run_name, self.rows = project, run_name, rows
        self._shows_iterations = rows != "epoch"
        self.sent = 0
        self.resumed_at: int | None = None
        self.taken_before = 0
        """Of a run that is resumed, how many rows the tracker has taken already."""
        self.purge_step: int | None = None
        """Of a run that is resumed, the first step that is sent again."""
        self.last_rows: list[dict[str, Any]] = []
        """Of a run that is resumed, those of the rows it has taken that are at this step or past it."""
        self.called_at = 0.0
        """When the row that is being sent was logged, in seconds since 1970."""
        self.run_id = ""
        self.run_of = ""
        self.told = False
        """Whether the hyper-parameters were taken."""
        self._numbered = 0
        self._earlier_outbox: Path | None = None
        self._background: Background | None = None
        self._forget()

    def _forget(self) -> None:
        self._waiting = WaitingRows()
        self._earlier: list[Row] = []
        self._shown: deque[Medium] = deque()
        self._plots: dict[str, tuple[str, int]] = {}
        self._opening: Opening | None = None
        self._delivery: Delivery | None = None
        self._error: BaseException | None = None

    def explain(self) -> str:
        return {"all": "all rows", "epoch": "rows of epochs", "iter": "rows of iterations"}[self.rows]

    # What a tracker does --------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Imports what is needed. This one is called by the training itself as a run begins, so it must not wait."""

    def new_id(self, opening: Opening) -> str:
        """The ``run_id`` of a run that begins, before the store is opened. It is saved in checkpoints."""
        return ""

    def start(self, opening: Opening) -> None:
        """Opens the store. Called before anything else, and again if it failed."""

    def log(self, row: dict[str, Any]) -> None:
        """Takes one row: kind, epoch, step, batch, and the metrics."""
        raise NotImplementedError(f"{type(self).__name__} has no log(row)")

    def image(self, name: str, file: str, step: int) -> None:
        """Takes an image, a PNG."""

    def figure(self, name: str, file: str, step: int) -> None:
        """Takes a plot, a PNG or another file; by default as an image."""
        self.image(name, file, step)

    def histogram(self, name: str, bins: Mapping[str, Any], step: int) -> None:
        """Takes a histogram: ``edges``, ``counts``, ``count``, ``sum`` and ``squares``."""

    def text(self, name: str, text: str, step: int) -> None:
        """Takes a text."""

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Takes what was set, by dotted names; secrets are masked."""

    def artifact(self, name: str, file: str) -> None:
        """Takes a file."""

    def resume(self, step: int, rows: int) -> None:
        """The run goes on from a checkpoint, after ``rows`` rows: marks it, and cuts what is past it if it can."""

    def flush(self) -> None:
        """Puts on disk, or sends, what was taken. Called after each batch of rows."""

    def finish(self, state: str) -> None:
        """Closes the store; ``state`` is how the run ended."""

    # When -----------------------------------------------------------------------------------------------------------

    def after_register(self, run: Run) -> None:
        self._forget()
        experiment = run.experiment
        if hasattr(experiment, "reader"):
            self._shown = experiment.reader()
        self._begin(run)

    def after_load(self, run: Run) -> None:
        self.resumed_at = run.clock.steps
        self._waiting = WaitingRows()
        self._earlier = [row for row in run.history.rows if row.complete and self.rows in ("all", row.kind)]

    def after_log(self, run: Run) -> None:
        row = run.row
        if row is None or self.rows not in ("all", row.kind):
            return
        self._waiting.add(row)
        if found := self._waiting.arrived():
            self._flush(run, found)

    def before_save(self, run: Run) -> None:
        self._flush(run)

    def after_epoch(self, run: Run) -> None:
        self._flush(run)

    def after_run(self, run: Run) -> None:
        self._flush(run)

    def after_error(self, run: Run) -> None:
        self._error = run.error
        self._flush(run)

    def close(self) -> None:
        """Sends what came last, closes the store, and reports what could not be sent."""
        delivery = self._delivery
        if delivery is not None:
            delivery.add(self._calls_of(self._waiting.every()))
            delivery.end(state_of(self._error))
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        state = {"sent": self.sent + len(self._waiting), "run_id": self.run_id, "run_of": self.run_of}
        outbox = None if self._delivery is None else str(self._delivery.outbox.path)
        return {**state, "numbered": self._numbered + len(self._waiting), "told": self.told, "outbox": outbox}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sent, self.run_id, self.run_of = int(state["sent"]), str(state["run_id"]), str(state["run_of"])
        self._numbered, self.told = int(state.get("numbered", 0)), bool(state.get("told", True))
        outbox = state.get("outbox")
        self._earlier_outbox = None if outbox is None else Path(outbox)

    # How ------------------------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        experiment = run.experiment
        folder = Path(getattr(experiment, "folder", None) or _path(experiment) or "runs")
        self._opening = Opening(
            project=self.project or getattr(experiment, "project", None) or "cadenza",
            name=self.run_name or getattr(experiment, "name", None) or "run",
            id=str(getattr(experiment, "id", None) or f"{now().replace(':', '')}-{os.urandom(3).hex()}"),
            folder=folder,
            root=Path(getattr(experiment, "root", folder)),
        )
        place = outbox_place(run, self, folder, None if hasattr(experiment, "folder") else self._opening.id)
        self._background = self._background or Background(self.name)
        self._delivery = Delivery(self, place, self._background)
        try:
            self.prepare()
        except Exception as error:  # ``start`` fails too, and then it is warned of
            log.info("%s: %s", self.name, error)

    def _flush(self, run: Run, rows: list[tuple[Row, Any, list[float]]] | None = None) -> None:
        """Hands ``rows``, or all that wait, what was shown, and new plots to the thread that sends them."""
        delivery = self._delivery
        if delivery is None:
            return
        plots = self._plots_of(run)
        if rows or self._waiting or self._shown or plots:
            if not delivery.is_open:
                self._open(run, delivery)
            calls = self._calls_of(self._waiting.every() if rows is None else rows)
            while self._shown:
                calls.append(self._numbered_call(as_call(self._shown.popleft())))
            for name, file in plots.items():
                self._plots[name] = version(file)
                figure = {"what": "figure", "name": name, "file": file, "step": run.clock.steps}
                calls.append(self._numbered_call(figure))
            delivery.add(calls)
        delivery.go()

    def _calls_of(self, rows: list[tuple[Row, Any, list[float]]]) -> list[Call]:
        calls = []
        for row, _, numbers in rows:
            values = {_name(row, name): number for name, number in zip(row.raw(), numbers, strict=True)}
            calls.append(self._numbered_call({"what": "log", "row": {"kind": row.kind, **row.at, **values}}))
        self.sent += len(rows)
        return calls

    def _numbered_call(self, call: Call) -> Call:
        self._numbered += 1
        return {"n": self._numbered, "at": time(), **call}

    def _open(self, run: Run, delivery: Delivery) -> None:
        """Begins with what was set, which is known once the run has begun."""
        assert self._opening is not None
        goes_on = bool(self.run_of) and (self.resumed_at is not None or self.run_of == self._opening.id)
        opening = replace(
            self._opening, hyperparameters=getattr(run.experiment, "hyperparameters", {}), goes_on=goes_on
        )
        self.taken_before, self.purge_step, self.last_rows = self.sent, None, []
        if not goes_on:
            self.sent = self._numbered = 0
            self.told, self.run_id = False, self.new_id(opening)
            delivery.outbox.set_aside()
        elif self.resumed_at is not None:
            self._follow_resume(delivery.outbox.keep(self._numbered, self._earlier_outbox))
        self.run_of = opening.id
        delivery.open(opening)

    def _follow_resume(self, kept: list[Call]) -> None:
        """Notes which rows the tracker has taken, and which of them its store may hide with what is sent again."""
        unsent = [call["row"] for call in kept if call["what"] == "log"]
        self.taken_before = self.sent - len(unsent)
        self.purge_step = min([self.resumed_at or 0, *(int(row["step"]) for row in unsent if "step" in row)])
        taken = self._earlier[: len(self._earlier) - len(unsent)]
        self.last_rows = [
            {"kind": row.kind, **row.at, **{_name(row, name): value for name, value in row.items()}}
            for row in taken
            if int(row.at.get("step") or 0) >= self.purge_step
        ]
        self._earlier = []

    def _plots_of(self, run: Run) -> dict[str, str]:
        """The plots of callbacks, by name, that were not sent as they are now."""
        found = run.store.get("plots", {})
        return {
            name: file
            for name, file in found.items()
            if os.path.exists(file) and self._plots.get(name) != version(file)
        }


def _name(row: Row, name: str) -> str:
    """What an iteration logged is another curve than the value over its pass, which has the name itself."""
    return name if row.whole else f"{name}_batch"


def _path(value: Any) -> str | None:
    return os.fspath(value) if isinstance(value, str | os.PathLike) else None
