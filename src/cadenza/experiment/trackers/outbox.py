"""The calls of a tracker in a file, from when they are made until the tracker has taken them."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from cadenza.experiment.jsonl_file import LinesFile
from cadenza.foundation.locking import is_locked

log = logging.getLogger("cadenza")
AT_MOST = 10_000
"""So many calls are kept in memory while the file cannot be written; of more the oldest are dropped."""
_NOTED = 0.1
"""Seconds between the notes of what was taken. A process that is killed between two of them sends that again."""

Call = dict[str, Any]


class Outbox:
    """Calls with ascending numbers ``n``. The training adds them; a thread takes them, in order.

    A call is in the file before the tracker sees it, so it survives a kill. ``{"taken": n}`` in the file says that the
    calls up to ``n`` were taken. When all are, the file is removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        self._lock = threading.Lock()
        self._file: LinesFile | None = None
        self._unwritten: deque[Call] = deque()
        self._taken: int | None = None
        self._noted = (0, 0.0)
        self._offset = self._end = 0
        self._made: Path | None = None

    # The training ---------------------------------------------------------------------------------------------------

    def set_aside(self) -> None:
        """Gives the calls of an earlier training in the same folder another name."""
        if _pending(self.path):
            kept = LinesFile(self.path).set_aside()
            log.warning("what an earlier training could not send was kept as %s", kept)
        else:
            self._remove()

    def keep(self, last: int, earlier: Path | None = None) -> list[Call]:
        """Drops the calls past number ``last``, which a resumed training makes again; returns the others. They may be
        in the file ``earlier`` of the folder in which the training was before, unless another run has that folder."""
        own = self.path.resolve()
        files = {own}
        if earlier is not None and not (earlier.resolve() != own and is_locked(earlier.parent)):
            files.add(earlier.resolve())
        found = {call["n"]: call for path in files for call in _pending(path) if call["n"] <= last}
        calls = [found[number] for number in sorted(found)]
        try:
            if calls:
                self._make_folder()
                self._file = LinesFile(self.path)
                self._file.rewrite(calls)
            for path in files if not calls else files - {own}:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.info("%s cannot be written: %s", self.path, error)
            self._unwritten.extend(calls)
            self._remove()
        self._taken = 0
        return calls

    def append(self, calls: Sequence[Call]) -> None:
        """Adds calls. Without room on the disk they wait in memory."""
        with self._lock:
            self._unwritten.extend(calls)
            try:
                self._write()
            except OSError as error:
                log.info("%s cannot be written: %s", self.path, error)
            while len(self._unwritten) > AT_MOST:
                self._unwritten.popleft()
                self.lost += 1

    def _write(self) -> None:
        if not self._unwritten:
            return
        if self._file is None:
            self._make_folder()
            self._file = LinesFile(self.path)
        self._file.append(self._unwritten)
        self._unwritten.clear()

    def _make_folder(self) -> None:
        if not self.path.parent.exists():
            self.path.parent.mkdir(parents=True)
            self._made = self.path.parent

    # The thread that sends ------------------------------------------------------------------------------------------

    def waiting(self, most: int) -> list[Call]:
        """The oldest calls that were not taken. If there are none, the file is removed."""
        with self._lock:
            if self._taken is None:
                marks = (line["taken"] for line, _ in _lines_from(self.path, 0) if "taken" in line)
                self._taken = max(marks, default=0)
            found = self._in_file(most)
            if not found:
                self._remove()
            return found or [call for call in list(self._unwritten)[:most] if call["n"] > self._taken]

    def _in_file(self, most: int) -> list[Call]:
        found: list[Call] = []
        self._end = self._offset
        for line, end in _lines_from(self.path, self._offset):
            if "n" in line and line["n"] > (self._taken or 0):
                found.append(line)
            self._end = end
            if len(found) == most:
                break
        return found

    def taken(self, number: int, *, at_once: bool = False) -> None:
        """Notes that the tracker has taken the calls up to ``number``."""
        with self._lock:
            self._taken = number
            while self._unwritten and self._unwritten[0]["n"] <= number:
                self._unwritten.popleft()
            noted, when = self._noted
            if noted == number or not (at_once or monotonic() - when > _NOTED):
                return
            self._noted = number, monotonic()
            try:
                if self.path.exists():
                    LinesFile.append(self._file or LinesFile(self.path), [{"taken": number}])
            except OSError as error:
                log.info("%s cannot be written: %s", self.path, error)

    def pass_over(self) -> None:
        """What ``waiting`` returned last was taken: it is not read again."""
        with self._lock:
            self._offset = self._end

    def _remove(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
            if self._made is not None:
                self._made.rmdir()
        except OSError:
            pass  # it says itself what was taken
        self._file, self._offset, self._end, self._made = None, 0, 0, None

    # The end of a run -----------------------------------------------------------------------------------------------

    def close(self) -> tuple[int, int]:
        """Leaves only what was not taken in the file. Returns how many calls are there, and how many nowhere."""
        with self._lock:
            try:
                self._write()
                left = _pending(self.path, self._taken or 0)
                if left and self._file is not None:
                    self._file.rewrite(left)
                elif not left:
                    self._remove()
            except OSError as error:
                log.info("%s cannot be written: %s", self.path, error)
                left = _pending(self.path, self._taken or 0)
            self._offset = self._end = 0
            return len(left), self.lost + len(self._unwritten)


def _pending(path: Path, taken: int = 0) -> list[Call]:
    lines = [line for line, _ in _lines_from(path, 0)]
    taken = max([taken, *(line["taken"] for line in lines if "taken" in line)])
    return [line for line in lines if "n" in line and line["n"] > taken]


def _lines_from(path: Path, offset: int) -> Iterator[tuple[Call, int]]:
    """The lines of a file from ``offset`` on, and where each ends."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            offset += len(line)
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found, offset
