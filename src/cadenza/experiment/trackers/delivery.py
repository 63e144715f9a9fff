"""Sending things to a tracker that may fail or hang: nothing is lost, and the training does not wait."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from cadenza.checkpoint.backends.watchdog import Outage
from cadenza.experiment.media import Medium
from cadenza.experiment.secrets import masked_text
from cadenza.experiment.trackers.outbox import Call, Outbox
from cadenza.foundation.background import Background
from cadenza.foundation.warn import warn
from cadenza.history import PLACES

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.experiment.trackers.tracker import Tracker
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


def metrics_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a row, without where it was written."""
    return {name: value for name, value in row.items() if name not in PLACES}


def as_call(medium: Medium) -> dict[str, Any]:
    """A medium as the call of a tracker's method."""
    if medium.kind == "artifact":
        return {"what": "artifact", "name": medium.name, "file": str(medium.value)}
    key = {"image": "file", "figure": "file", "histogram": "bins", "text": "text"}[medium.kind]
    value = str(medium.value) if key == "file" else medium.value
    return {"what": medium.kind, "name": medium.name, key: value, "step": medium.step}


def outbox_place(run: Run, tracker: Callback, folder: Path, id: str | None) -> Path:
    """The outbox of ``tracker``. A second one of its kind in this run gets another, and where other runs write too,
    the id of this one is in its name."""
    kind = type(tracker)
    alike = [one for one in (getattr(one, "callback", one) for one in run.callbacks) if type(one) is kind]
    number = next((number for number, one in enumerate(alike, 1) if one is tracker), 1)
    parts = ["unsent", kind.__name__.lower(), *([str(number)] if number > 1 else []), *([id] if id else [])]
    return folder / f"{'-'.join(parts)}.jsonl"


def version(file: str) -> tuple[str, int]:
    return file, os.stat(file).st_mtime_ns


log = logging.getLogger("cadenza")
BATCH = 100
"""Calls between two flushes, while there are so many."""
TRIES = 3
"""Attempts to send something other than a row to a tracker that collects and takes rows."""
SILENT = 30.0
"""Seconds after which a call that has not returned is warned of."""
IN_ALL = 120.0
"""Seconds that the end of a run waits at most for a tracker that is slow but takes one thing after the other."""
HURRIED = 5.0
"""Seconds without progress that the end of a run waits if it was interrupted or preempted."""


class Delivery:
    """Calls the methods of one tracker in a thread. Each call is in the outbox until the tracker has taken it."""

    def __init__(self, tracker: Tracker, unsent: Path, background: Background) -> None:
        self.tracker, self.outbox, self.background = tracker, Outbox(unsent), background
        self._outage = Outage()
        self._opening: Opening | None = None
        self._started = self._posted = self._ended = self._failed_late = self._given_up = False
        self._since: float | None = None
        self._moved = self._refused = 0
        self._failure: str | None = None
        self._warned = False

    # The training ---------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._opening is not None

    def open(self, opening: Opening) -> None:
        """Says with what the tracker is to be started."""
        self._opening = opening

    def add(self, calls: Sequence[Call]) -> None:
        """Has ``calls`` sent, after those before them."""
        self.outbox.append(calls)

    def go(self) -> None:
        """Lets the thread send what there is, unless the tracker failed a short time ago."""
        if self._opening is None:
            return
        if not self._posted and self._outage.is_due:
            self._posted = True
            self.background.post(self._send_all)
        self._tell()

    def end(self, state: str) -> None:
        """Sends what is left and closes the tracker. Waits while it makes progress, and reports what remains."""
        if self._opening is not None:
            patience = self.tracker.patience
            if state in ("preempted", "interrupted"):
                patience = min(HURRIED, patience)
            self._ended = True
            self.background.post(self._send_last)
            self.background.post(lambda: self._finish(state))
            self._wait(patience)
        left, lost = self.outbox.close()
        self._tell()
        if left or lost:
            where = f"{left} of them are in {self.outbox.path}" if left else "they could not be kept either"
            warn(f"{self.tracker.name} could not send {left + lost} things of this run; {where}")

    def _wait(self, patience: float) -> None:
        until, seen = monotonic() + IN_ALL, -1
        while seen != self._moved and monotonic() < until:
            seen = self._moved
            if self.background.finish(patience):
                return
        self._given_up = True
        self._failure = self._failure or f"it did not answer within {patience:g} s"

    def _tell(self) -> None:
        since = self._since
        if self._failure is None and since is not None and monotonic() - since > SILENT:
            self._failure = f"it has not answered for {SILENT:g} s"
        if self._failure is not None and not self._warned:
            self._warned = True
            warn(
                f"{self.tracker.name} failed, the training goes on; what it could not take is kept in "
                f"{self.outbox.path}. {self._failure}"
            )

    # The thread -----------------------------------------------------------------------------------------------------

    def _send_last(self) -> None:
        """One more attempt, however short the pause was, unless there was one since the run ended."""
        if not self._failed_late:
            self._outage.ended()
            self._send_all()

    def _send_all(self) -> None:
        self._posted = False
        if self._given_up or not self._outage.is_due:
            return
        try:
            self._start()
            while not self._given_up and (calls := self.outbox.waiting(BATCH)):
                self._send(calls)
            self._outage.ended()
        except Exception as error:
            self._fail(error)

    def _send(self, calls: Sequence[Call]) -> None:
        """Sends ``calls`` and flushes. A tracker that collects has taken nothing before the flush."""
        taken, tracker = 0, self.tracker
        try:
            for call in calls:
                if tracker.collects and call["what"] != "log":
                    self._timed(tracker.flush)  # the tracker is there, and has what was before
                    taken = call["n"] - 1
                    self._show(call)
                else:
                    self._call(call)
                if not tracker.collects:
                    taken = call["n"]
                    self.outbox.taken(taken)
                if self._given_up:
                    return
            self._timed(tracker.flush)
            taken = calls[-1]["n"]
        finally:
            if taken:
                self.outbox.taken(taken, at_once=True)
        self.outbox.pass_over()

    def _show(self, call: Call) -> None:
        """Sends something other than a row. What a tracker that is there never takes does not hold up the rows."""
        try:
            self._call(call)
        except Exception as error:
            self._refused += 1
            if self._refused < TRIES:
                raise
            log.warning("%s never took %s, so it was left out: %s", self.tracker.name, call["name"], error)
        self._refused = 0

    def _call(self, call: Call) -> None:
        values = {name: value for name, value in call.items() if name not in ("n", "what", "at")}
        if "file" in values and not os.path.exists(values["file"]):
            log.warning("%s: %s is gone, so it was not sent", self.tracker.name, values["file"])
            return
        self.tracker.called_at = call["at"]
        self._timed(lambda: getattr(self.tracker, call["what"])(**values))

    def _start(self) -> None:
        if self._started:
            return
        tracker, opening = self.tracker, self._opening
        assert opening is not None
        tracker.called_at = time()
        self._timed(lambda: tracker.start(opening))
        if not tracker.told:
            self._timed(lambda: tracker.hyperparameters(opening.hyperparameters))
            tracker.told = True
        resumed_at = tracker.resumed_at
        if opening.goes_on and resumed_at is not None:
            self._timed(lambda: tracker.resume(resumed_at, tracker.taken_before))
        tracker.resumed_at = None
        self._started = True

    def _finish(self, state: str) -> None:
        if self._started:
            try:
                self._timed(lambda: self.tracker.finish(state))
            except Exception as error:
                self._fail(error)

    def _timed(self, call: Callable[[], object]) -> None:
        self._since = monotonic()
        try:
            call()
        finally:
            self._since = None
            self._moved += 1

    def _fail(self, error: Exception) -> None:
        said = masked_text(f"{type(error).__name__}: {error}")
        self._outage.failed(said)
        log.info("%s failed: %s", self.tracker.name, said)
        self._failure, self._failed_late = self._failure or said, self._ended
