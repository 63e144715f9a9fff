"""The files that grow while a run goes on: rows, happenings, log and status."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.experiment.jsonl_file import LinesFile, Trouble, WaitingLines
from cadenza.experiment.secrets import masked_text
from cadenza.experiment.status import now, state_of, write_status
from cadenza.experiment.waiting_rows import WaitingRows
from cadenza.foundation.row_files import text_line
from cadenza.foundation.warn import SHOWN
from cadenza.foundation.whole_files import append_whole

if TYPE_CHECKING:
    from cadenza.history import Best, Row
    from cadenza.run import Run


_MOST = 200
"""So many warnings of a run are kept; the log has all."""


class Happenings:
    """Writes ``events.jsonl``: one line for each thing that somebody reads later to understand a run."""

    def __init__(self, path: Path, trouble: Trouble) -> None:
        self._file = WaitingLines(LinesFile(path), trouble)
        self._not_finite: set[str] = set()
        self._warned: dict[str, int] = {}
        self.skips = 0

    def add(self, kind: str, says: str, run: Run | None = None, **more: Any) -> None:
        where = {} if run is None else {"epoch": run.epoch, "step": run.clock.steps}
        self._file.append([{"time": now(), "kind": kind, "says": masked_text(says), **where, **more}])

    def warning(self, kind: str, says: str) -> None:
        """The same warning is written once."""
        self._warned[says] = self._warned.get(says, 0) + 1
        if self._warned[says] == 1 and len(self._warned) <= _MOST:
            self.add(kind, says)

    def look_at(self, row: dict[str, Any]) -> None:
        """Notes the first value of each metric that is not finite."""
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value) and name not in self._not_finite:
                self._not_finite.add(name)
                where = {place: row[place] for place in ("epoch", "step") if place in row}
                self.add("not finite", f"{name} is {value}", None, **where)

    def count_skip(self, run: Run) -> None:
        """Counts a batch whose step was dropped; accumulation, which holds steps, is none."""
        skipped = run.skipped
        if "backward" in skipped or ("step" in skipped and "zero_grad" not in skipped):
            self.skips += 1

    def write_skips(self, run: Run) -> None:
        if self.skips:
            many = "s were" if self.skips > 1 else " was"
            self.add("skip", f"{self.skips} step{many} skipped", run, count=self.skips)
            self.skips = 0


class LogFile(logging.Handler):
    """Appends lines to a file. Those that cannot be written wait, the last thousand of them."""

    def __init__(self, path: Path, heard: Callable[[str, str], None]) -> None:
        super().__init__(logging.INFO)
        self.path, self.heard = path, heard
        self._unwritten: deque[str] = deque(maxlen=1000)

    def write(self, text: str) -> None:
        """Adds ``text`` with the time in front."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        self._unwritten.append(f"{stamp} {masked_text(text)}\n")
        with contextlib.suppress(OSError):
            append_whole(self.path, "".join(self._unwritten).encode())
            self._unwritten.clear()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            said = record.getMessage()
        except Exception:
            self.handleError(record)
            return
        self.write(f"{record.levelname.lower()}: {said}")
        if record.levelno >= logging.WARNING:
            self.heard("warning", said)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, records of the ``cadenza`` loggers and warnings are written too; both also go where they went."""
        logger = logging.getLogger("cadenza")

        def hear(message: Warning | str, category: type[Warning]) -> None:
            self.write(f"warning: {category.__name__}: {message}")
            self.heard("warning", str(message))

        logger.addHandler(self)
        try:
            with SHOWN.heard_by(hear):
                yield
        finally:
            logger.removeHandler(self)


class Journal:
    """Written by the main process alone, while it holds the lock of the folder."""

    def __init__(self, folder: Path, metrics: Path, log: Path) -> None:
        self.folder = folder
        self.trouble = Trouble(folder)
        self.metrics = LinesFile(metrics)
        self._lines = WaitingLines(self.metrics, self.trouble)
        self.happened = Happenings(folder / "events.jsonl", self.trouble)
        self.log = LogFile(log, self.happened.warning)
        self.begun = now()
        self._waiting = WaitingRows()
        self._first = True
        self._best: Best | None = None

    # Rows -----------------------------------------------------------------------------------------------------------

    def take(self, run: Run, row: Row) -> None:
        """Keeps a row until the next write: at once for that of an epoch."""
        self._waiting.add(row, run.clock.seconds)
        self._write(run, self._waiting.arrived())

    def flush(self, run: Run | None) -> None:
        """Reads what waits from the device, all at once, and writes it."""
        self._write(run, self._waiting.every())

    def _write(self, run: Run | None, found: list[tuple[Row, float, list[float]]]) -> None:
        if not found:
            return
        if run is not None:
            self.set_earlier_rows_aside(run, len(found) + len(self._waiting))
        rows = []
        for row, seconds, numbers in found:
            values = dict(zip(row.raw(), numbers, strict=True))
            rows.append({"kind": row.kind, **row.at, "clock_seconds": round(seconds, 3), **values})
        self._lines.append(rows)
        for written in rows:
            self.happened.look_at(written)
            if written["kind"] == "epoch":
                self.log.write(text_line(_to_read(written)))

    def set_earlier_rows_aside(self, run: Run, waiting: int = 0) -> None:
        """Renames the rows of an earlier training if this one begins from the start. Looks only once.

        A save must call this too: it may come before the first row, and would count the rows of the earlier training.
        """
        if not self._first:
            return
        self._first = False
        known = sum(row.complete for row in run.history.rows)  # that of the epoch may be open
        if run.mode == "fit" and self.metrics.count and known <= waiting:
            kept = self.metrics.set_aside()
            self.happened.add(
                "anew", f"training began anew; the rows of the one before are in {kept and kept.name}", run
            )

    @property
    def rows(self) -> int:
        """How many rows were given to the journal, written or not."""
        return self._lines.count + len(self._waiting)

    def resume(self, run: Run, rows: int) -> None:
        """Brings the rows to where the checkpoint was made; those past it are cut."""
        self._waiting, self._first = WaitingRows(), False
        cut = self.metrics.count - rows
        if cut >= 0:
            self.metrics.cut(rows)
        else:  # the checkpoint is of another folder: its rows are in the history
            self.metrics.rewrite(row.as_dict() for row in run.history.rows if row.complete)
        said = f"resumed at step {run.clock.steps} in epoch {run.epoch + 1}" + (
            f"; {cut} rows were cut" if cut > 0 else ""
        )
        self.happened.add("resume", said, run, cut=max(cut, 0))
        self.log.write(said)

    def end_epoch(self, run: Run) -> None:
        """What is known after an epoch: its rows, its skips, and whether it was the best so far."""
        self.flush(run)
        self.happened.write_skips(run)
        self._look_for_best(run)
        self.write_status(run, "running")

    def _look_for_best(self, run: Run) -> None:
        """Looks instead of playing ``after_best``: to play it means to demand that one metric is watched."""
        best = run.best
        if best is not None and best != self._best:
            self._best = best
            self.happened.add("best", f"{best.name} is {best.value:.6g}", run, value=best.value)

    # Status ---------------------------------------------------------------------------------------------------------

    def write_status(self, run: Run, state: str, **more: Any) -> None:
        best = run.best
        found = {
            "mode": run.mode,
            "begun": self.begun,
            "epochs": run.clock.epochs,
            "steps": run.clock.steps,
            "seconds": round(run.clock.seconds, 3),
            "num_epochs": run.num_epochs,
            "num_steps": run.num_steps,
            "metrics": {name: _plain(value) for name, value in run.metrics.items()},
            "best": None if best is None else {**vars(best), "value": _plain(best.value)},
        }
        with self.trouble.noting():
            write_status(self.folder, state, **found, **more)

    def close(self, run: Run | None) -> None:
        """Writes what came last, and warns of what could not be written."""
        self.flush(run)
        self._lines.append()
        self._lines.warn_of_rest()

    def end(self, run: Run, error: BaseException | None) -> None:
        """Writes how the run ended. After an error nothing that fails here hides it."""
        state = state_of(error)
        says = None if error is None else masked_text(f"{type(error).__name__}: {error}".removesuffix(": "))
        raised = "" if error is None else masked_text(_raised(error))
        try:
            self.flush(run)
            self.happened.write_skips(run)
            self._look_for_best(run)
            reason = f": {run.stop_reason}" if run.stop_reason else ""
            if error is None:
                self.happened.add("end", f"{run.mode} finished{reason}", run)
            else:
                self.happened.add(state, f"{says}; {raised}" if raised else str(says), run)
            self.log.write(f"{state}{reason}" if says is None else f"{state}: {says}{raised and '; '}{raised}")
            self.write_status(run, state, error=says, raised=raised or None, stop_reason=run.stop_reason)
        except Exception as late:
            if error is None:
                raise
            warnings.warn(f"the end of the run could not be written to {self.folder}: {late}", stacklevel=2)


def _raised(error: BaseException) -> str:
    """Who raised ``error`` at which point, as its note says; the epoch is said beside it."""
    notes = (note.removeprefix("cadenza: ") for note in getattr(error, "__notes__", ()) if isinstance(note, str))
    return next((note.partition(" (")[0] for note in notes if note.startswith("raised in ")), "")


def _to_read(row: dict[str, Any]) -> dict[str, Any]:
    """A row of an epoch for the log, where epochs are counted from 1, as on the screen and in the report."""
    return {name: value + 1 if name == "epoch" else value for name, value in row.items() if name != "kind"}


def _plain(value: float) -> float | str:
    """JSON has no NaN and no infinities."""
    return value if value - value == 0 else str(value)
