"""What every tracker has in common: when it is told what, and what happens when it fails."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from cadenza.callback import Callback, Order
from cadenza.callbacks.arguments import one_of, text
from cadenza.experiment.journal import AT_MOST, SECONDS
from cadenza.experiment.media import Medium
from cadenza.experiment.status import now, state_of
from cadenza.experiment.trackers.delivery import Delivery
from cadenza.history import PLACES, Row, read

if TYPE_CHECKING:
    from cadenza.run import Run


@dataclass(frozen=True)
class Opening:
    """What a tracker is told when it starts: whose run this is, and what was set."""

    project: str
    name: str
    id: str
    folder: Path
    root: Path
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = False
    """Whether this run was tracked before: it is resumed, or another fit of the same training."""


class Tracker(Callback):
    """Sends the rows of the history, and what ``run.experiment`` shows, somewhere else. Derive from it, and write
    ``log``; the other methods are for trackers that can show more.

    It starts with the first row. A failure never stops a training: it warns once, what could not be sent is kept in
    ``unsent-<name>.jsonl`` in the folder of the run and sent later, and what is left at the end is said. ``rows`` is
    "all", "epoch" or "iter". Values that training iterations log under a name that epochs have too, such as
    ``train/loss``, get ``_batch`` behind their name.

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

    def __init__(self, *, project: str | None = None, run_name: str | None = None, rows: str = "all") -> None:
        one_of(f"{self.name}: rows", rows, ("all", "epoch", "iter"))
        for what, given in (("project", project), ("run_name", run_name)):
            if given is not None:
                text(f"{self.name}: {what}", given, "a text that is not empty, or None")
        self.project, self.run_name, self.rows = project, run_name, rows
        self.sent = 0
        self.resumed_at: int | None = None
        self.last_rows: list[dict[str, Any]] = []
        """Of a run that is resumed, the rows before the checkpoint that have its very step."""
        self.run_id = ""
        self.run_of = ""
        self._forget()

    def _forget(self) -> None:
        self._waiting: list[Row] = []
        self._shown: deque[Medium] = deque()
        self._plots: dict[str, tuple[str, int]] = {}
        self._flushed = monotonic()
        self._opening: Opening | None = None
        self._delivery: Delivery | None = None
        self._of_epochs: set[str] = set()
        self._error: BaseException | None = None

    def explain(self) -> str:
        return {"all": "all rows", "epoch": "rows of epochs", "iter": "rows of iterations"}[self.rows]

    # What a tracker does --------------------------------------------------------------------------------------------

    def start(self, opening: Opening) -> None:
        """Opens the store. Called once in a run, before anything else."""

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
        """Puts on disk what was taken."""

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
        self._waiting = []
        earlier = [row for row in run.history.rows if row.complete]
        self._of_epochs = {name for row in earlier if row.kind == "epoch" for name in row.raw()}
        self.last_rows = [
            {"kind": row.kind, **row.at, **{self._name(row, name): value for name, value in row.items()}}
            for row in earlier
            if self.rows in ("all", row.kind) and row.at.get("step") == self.resumed_at
        ]

    def after_log(self, run: Run) -> None:
        row = run.row
        if row is None or self.rows not in ("all", row.kind):
            return
        self._waiting.append(row)
        if row.kind == "epoch" or len(self._waiting) >= AT_MOST or monotonic() - self._flushed > SECONDS:
            self._flush(run)

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
        """Sends what came last, closes the store, and says what could not be sent."""
        delivery = self._delivery
        if delivery is not None:
            self._send_rows()
            delivery.end(state_of(self._error))
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        return {"sent": self.sent + len(self._waiting), "run_id": self.run_id, "run_of": self.run_of}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sent, self.run_id, self.run_of = int(state["sent"]), str(state["run_id"]), str(state["run_of"])

    # How ------------------------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        experiment = run.experiment
        folder = Path(getattr(experiment, "folder", None) or _path(experiment) or "runs")
        self._opening = Opening(
            project=self.project or getattr(experiment, "project", None) or "cadenza",
            name=self.run_name or getattr(experiment, "name", None) or "run",
            id=str(getattr(experiment, "id", None) or now().replace(":", "")),
            folder=folder,
            root=Path(getattr(experiment, "root", folder)),
        )
        self._delivery = Delivery(self, folder / f"unsent-{type(self).__name__.lower()}.jsonl")

    def _flush(self, run: Run) -> None:
        """Sends the waiting rows, what was shown, and the plots that are new."""
        self._flushed = monotonic()
        delivery = self._delivery
        if delivery is None or not (self._waiting or self._shown or self._plots_of(run)):
            return
        delivery.ready(lambda: self._ready(run))
        self._send_rows()
        while self._shown:
            delivery.send(**_as_call(self._shown.popleft()))
        for name, file in self._plots_of(run).items():
            self._plots[name] = _version(file)
            delivery.send(what="figure", name=name, file=file, step=run.clock.steps)
        delivery.send(what="flush")

    def _send_rows(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting or self._delivery is None:
            return
        values = iter(read(value for row in waiting for value in row.raw().values()))  # the one wait for all of them
        for row in waiting:
            numbers = {self._name(row, name): next(values) for name in row.raw()}
            self._delivery.send(what="log", row={"kind": row.kind, **row.at, **numbers})
        self.sent += len(waiting)

    def _ready(self, run: Run) -> Opening:
        """The opening with what was set, which is known once the run has begun."""
        assert self._opening is not None
        values = getattr(run.experiment, "hyperparameters", {})
        known = {name: getattr(self._opening, name) for name in ("project", "name", "id", "folder", "root")}
        goes_on = bool(self.run_of) and (self.resumed_at is not None or self.run_of == self._opening.id)
        if not goes_on:
            self.sent = 0
        self.run_of = self._opening.id
        return Opening(**known, hyperparameters=values, goes_on=goes_on)

    def _name(self, row: Row, name: str) -> str:
        if row.kind == "epoch":
            self._of_epochs.add(name)
            return name
        twice = name in self._of_epochs or name.endswith("/loss")
        return f"{name}_batch" if twice and row.at.get("stage") == "train" else name

    def _plots_of(self, run: Run) -> dict[str, str]:
        """The plots of callbacks, by name, that were not sent as they are now."""
        found = run.store.get("plots", {})
        return {
            name: file
            for name, file in found.items()
            if os.path.exists(file) and self._plots.get(name) != _version(file)
        }


def metrics_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a row, without where it was written."""
    return {name: value for name, value in row.items() if name not in PLACES}


def _as_call(medium: Medium) -> dict[str, Any]:
    """A medium as the call of a tracker's method."""
    if medium.kind == "artifact":
        return {"what": "artifact", "name": medium.name, "file": str(medium.value)}
    key = {"image": "file", "figure": "file", "histogram": "bins", "text": "text"}[medium.kind]
    value = str(medium.value) if key == "file" else medium.value
    return {"what": medium.kind, "name": medium.name, key: value, "step": medium.step}


def _version(file: str) -> tuple[str, int]:
    return file, os.stat(file).st_mtime_ns


def _path(value: Any) -> str | None:
    return os.fspath(value) if isinstance(value, str | os.PathLike) else None
