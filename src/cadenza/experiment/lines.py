"""A file of JSON lines that is only appended to, holds whole lines, and can be cut back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cadenza.callbacks.folders import write_whole
from cadenza.callbacks.tables import json_line


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
        end = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:
                file.write("".join(lines).encode())
        except OSError as error:
            self._undo(end)
            raise CannotWrite(
                error.errno,
                f"{self.path} cannot be written ({error.strerror or error}); the {self.count} rows before are there. "
                "Make room, and go on from the last checkpoint",
            ) from error
        self.count += len(lines)

    def _undo(self, end: int) -> None:
        try:
            os.truncate(self.path, end)
        except OSError:
            pass  # a part of a line stays; readers leave it out

    def cut(self, count: int) -> None:
        """Keeps the first ``count`` lines."""
        if count < self.count:
            with self.path.open("rb") as file:
                kept = b"".join(line for _, line in zip(range(count), file, strict=False))
            write_whole(self.path, kept)
            self.count = count

    def rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Puts ``rows`` in the place of all that is there."""
        lines = [json_line(row) + "\n" for row in rows]
        write_whole(self.path, "".join(lines).encode())
        self.count = len(lines)

    def set_aside(self) -> Path | None:
        """Gives what is there another name and begins anew; returns that name."""
        if not self.path.exists():
            return None
        number = 1
        while (kept := self.path.with_name(f"{self.path.stem}.{number}{self.path.suffix}")).exists():
            number += 1
        self.path.rename(kept)
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
