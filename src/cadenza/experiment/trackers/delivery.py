"""Sending things to a tracker that may fail: nothing is lost, and nothing stops."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from cadenza.experiment.lines import LinesFile, read_lines
from cadenza.experiment.masking import masked_text

if TYPE_CHECKING:
    from cadenza.experiment.trackers.tracker import Opening, Tracker

log = logging.getLogger("cadenza")
PAUSE = 30.0
"""So many seconds a tracker that failed is left alone, so that one that hangs does not slow a training down."""


class Delivery:
    """Calls the methods of one tracker. What fails is kept in a file, and sent when the tracker works again."""

    def __init__(self, tracker: Tracker, unsent: Path) -> None:
        self.tracker, self.unsent = tracker, unsent
        self._open: Callable[[], Opening] | None = None
        self._opening: Opening | None = None
        self._started = False
        self._kept = 0
        self._lost = 0
        self._again = 0.0
        self._warned = False
        self._file: LinesFile | None = None

    def ready(self, opening: Callable[[], Opening]) -> None:
        """Says with what the tracker is to be started."""
        if self._open is None:
            self._open = opening

    def send(self, **call: Any) -> None:
        """Sends one thing, and before it what could not be sent earlier."""
        if self._open is None and call["what"] == "flush":
            return
        if monotonic() < self._again or not self._try(call):
            self._keep(call)

    def end(self, state: str) -> None:
        """Tries once more what is left, closes the tracker, and says what remains."""
        if self._kept and self._try({"what": "flush"}):
            log.info("%s took in the end what it could not take before", self.tracker.name)
        if self._started:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.tracker.finish(state)
            except Exception as error:
                self._fail(error)
        if self._kept or self._lost:
            where = f"{self._kept} of them are in {self.unsent}" if self._kept else "they could not be kept either"
            warnings.warn(
                f"{self.tracker.name} could not send {self._kept + self._lost} things of this run; {where}",
                stacklevel=2,
            )

    def _try(self, call: dict[str, Any]) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what other packages warn of is not ours to raise
                self._start()
                self._send_kept()
                self._call(call)
        except Exception as error:
            self._fail(error)
            return False
        return True

    def _call(self, call: dict[str, Any]) -> None:
        getattr(self.tracker, call["what"])(**{name: value for name, value in call.items() if name != "what"})

    def _start(self) -> None:
        if self._started:
            return
        if self._open is None:
            raise RuntimeError("nothing was logged yet")
        tracker = self.tracker
        if self._opening is None:
            self._opening = self._open()
        tracker.start(self._opening)
        self._started = True
        if not self._opening.goes_on:
            tracker.hyperparameters(self._opening.hyperparameters)
        elif tracker.resumed_at is not None:
            tracker.resume(tracker.resumed_at, tracker.sent)
        tracker.resumed_at = None

    def _send_kept(self) -> None:
        """Sends what is in the file, and takes away what was sent."""
        if not self._kept or self._file is None:
            return
        calls = list(read_lines(self.unsent))
        done = 0
        try:
            for call in calls:
                self._call(call)
                done += 1
        finally:
            self._file.rewrite(calls[done:])
            self._kept = len(calls) - done
        self.unsent.unlink(missing_ok=True)

    def _fail(self, error: Exception) -> None:
        self._again = monotonic() + PAUSE
        said = masked_text(f"{type(error).__name__}: {error}")
        log.info("%s failed: %s", self.tracker.name, said)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.tracker.name} failed, the training goes on; what it could not take is kept in {self.unsent}. "
                f"{said}",
                stacklevel=2,
            )

    def _keep(self, call: dict[str, Any]) -> None:
        if call["what"] == "flush":
            return
        try:
            if self._file is None:
                self.unsent.parent.mkdir(parents=True, exist_ok=True)
                self._file = LinesFile(self.unsent)
            self._file.append([call])
            self._kept += 1
        except Exception:
            self._lost += 1
