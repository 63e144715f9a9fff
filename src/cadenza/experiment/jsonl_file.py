"""A file of JSON lines that is only appended to, holds whole lines, and can be cut back."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cadenza.foundation.row_files import json_line
from cadenza.foundation.warn import warn
from cadenza.foundation.whole_files import append_whole, set_aside, write_whole

log = logging.getLogger("cadenza.experiment")
MOST_WAITING = 100_000
"""So many lines wait in memory while a file cannot be written; of more the oldest are lost."""


class CannotWrite(OSError):
    """A file of the experiment could not be written; what was there before is still there."""


class LinesFile:
    """One file. What was written is there when ``append`` returns, also if the process is killed afterwards.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = LinesFile(Path(folder) / "rows.jsonl")
    ...     file.append([{"step": 1}, {"step": 2}, {"step": 3}])
    ...     file.cut(2)
    ...     list(read_lines(file.path)), file.count
    ([{'step': 1}, {'step': 2}], 2)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = self._repair()

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds one line for each of ``rows``. After an error there is no part of a line in the file."""
        lines = [json_line(row) + "\n" for row in rows]
        if not lines:
            return
        try:
            append_whole(self.path, "".join(lines).encode())
        except OSError as error:
            raise self._cannot_write(error) from error
        self.count += len(lines)

    def _cannot_write(self, error: OSError) -> CannotWrite:
        said = f"{self.path} cannot be written ({error.strerror or error}); the {self.count} rows before are there"
        return CannotWrite(error.errno, said)

    def cut(self, count: int) -> None:
        """Keeps the first ``count`` lines. That needs no room on the disk."""
        if count < self.count:
            with self.path.open("rb") as file:
                end = sum(len(line) for _, line in zip(range(count), file, strict=False))
            os.truncate(self.path, end)
            self.count = count

    def rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Puts ``rows`` in the place of all that is there."""
        lines = [json_line(row) + "\n" for row in rows]
        try:
            write_whole(self.path, "".join(lines).encode())
        except OSError as error:
            raise self._cannot_write(error) from error
        self.count = len(lines)

    def set_aside(self) -> Path | None:
        """Gives what is there another name and begins anew; returns that name."""
        if kept := set_aside(self.path):
            self.count = 0
        return kept

    def _repair(self) -> int:
        """Cuts the part of a line that a crash of the machine left at the end; returns how many lines there are."""
        if not self.path.exists():
            return 0
        count = whole = 0
        with self.path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    count, whole = count + 1, whole + len(line)
        if whole < self.path.stat().st_size:
            os.truncate(self.path, whole)
        return count


class Trouble:
    """Warns once of a folder that cannot be written. The training goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._warned = False

    def note(self, error: OSError) -> None:
        log.info("%s", error)
        if not self._warned:
            self._warned = True
            warn(
                f"{self.folder} cannot be written: {error.strerror or error}. The training goes on; rows are kept in "
                "memory and written when that works again"
            )

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """What cannot be written inside is left out."""
        try:
            yield
        except OSError as error:
            self.note(error)


class WaitingLines:
    """Appends to ``file``. What cannot be written waits in memory, and goes before what comes next."""

    def __init__(self, file: LinesFile, trouble: Trouble) -> None:
        self.file, self.trouble = file, trouble
        self.waiting: deque[Mapping[str, Any]] = deque(maxlen=MOST_WAITING)
        self.lost = 0

    def append(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Adds one line for each of ``rows``, and those that wait."""
        added = list(rows)
        self.lost += max(0, len(self.waiting) + len(added) - MOST_WAITING)
        self.waiting.extend(added)
        try:
            self.file.append(self.waiting)
        except OSError as error:
            self.trouble.note(error)
        else:
            self.waiting.clear()

    @property
    def count(self) -> int:
        """How many lines there are, written or not."""
        return self.file.count + len(self.waiting)

    def warn_of_rest(self) -> None:
        """At the end of a run: warns of what could not be written."""
        if self.waiting or self.lost:
            warn(f"{len(self.waiting) + self.lost} rows of this run could not be written to {self.file.path}")


def read_lines(path: Path, beginning: str = "") -> Iterator[dict[str, Any]]:
    """The rows of a file; a last line that is not whole is left out, and NaN and infinities are numbers again.

    With ``beginning`` only lines that begin so are read.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.startswith(beginning):
                continue
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield {name: _UNUSUAL.get(value, value) if type(value) is str else value for name, value in row.items()}


_UNUSUAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
