"""What happened in a run: its beginnings and ends, the best values, skips, and values that are not finite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.experiment.jsonl_file import LinesFile, Trouble, WaitingLines
from cadenza.experiment.secrets import masked_text
from cadenza.experiment.status import now

if TYPE_CHECKING:
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
