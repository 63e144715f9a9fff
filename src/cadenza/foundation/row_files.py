"""Rows of values in a file of text, as csv, tsv, jsonl or lines to read; there are whole lines in it at any time."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cadenza.foundation.text_table import number
from cadenza.foundation.whole_files import append_whole, write_whole

FORMATS = ("csv", "tsv", "jsonl", "txt")
_SEPARATORS = {"csv": ",", "tsv": "\t"}


class Table:
    """One file. A column that appears later is put behind the others, for which the file is written anew.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Table(Path(folder) / "rows.csv", "csv")
    ...     table.append([{"epoch": 0, "loss": 0.5}])
    ...     table.append([{"epoch": 1, "loss": 0.25, "accuracy": 1.0}])
    ...     print(table.path.read_text())
    epoch,loss,accuracy
    0,0.5,
    1,0.25,1.0
    <BLANKLINE>
    """

    def __init__(self, path: Path, format: str) -> None:
        self.path, self.format = path, format
        self.columns: list[str] = []

    def rewrite(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Puts ``rows`` in the place of all that is there."""
        self.columns = list(dict.fromkeys(name for row in rows for name in row))
        write_whole(self.path, (self._header() + self._lines(rows)).encode())

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds ``rows`` at the end, on disk when this returns."""
        new = list(dict.fromkeys(name for row in rows for name in row if name not in self.columns))
        if new and self.format in _SEPARATORS:
            self._widen(new)
        header = "" if self.path.exists() else self._header()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_whole(self.path, (header + self._lines(rows)).encode(), on_disk=True)

    def read_columns(self) -> None:
        """Goes on in a file that is there already."""
        if self.path.exists():
            with self.path.open(encoding="utf-8", newline="") as file:
                self.columns = next(csv.reader(file, delimiter=_SEPARATORS[self.format]), [])

    def cut(self, count: int) -> None:
        """Keeps the first ``count`` rows."""
        if self.path.exists():
            self.rewrite(self._read()[:count])

    def _widen(self, new: list[str]) -> None:
        self.columns += new
        if self.path.exists():
            write_whole(self.path, (self._header() + self._lines(self._read())).encode())

    def _read(self) -> list[dict[str, Any]]:
        with self.path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file, delimiter=_SEPARATORS[self.format]))

    # Lines ----------------------------------------------------------------------------------------------------------

    def _header(self) -> str:
        return self._separated([self.columns]) if self.format in _SEPARATORS and self.columns else ""

    def _lines(self, rows: Sequence[Mapping[str, Any]]) -> str:
        if self.format in _SEPARATORS:
            return self._separated([[_cell(row.get(name)) for name in self.columns] for row in rows])
        line = json_line if self.format == "jsonl" else text_line
        return "".join(f"{line(row)}\n" for row in rows)

    def _separated(self, rows: Sequence[Sequence[str]]) -> str:
        buffer = io.StringIO()
        csv.writer(buffer, delimiter=_SEPARATORS[self.format], lineterminator="\n").writerows(rows)
        return buffer.getvalue()


def _cell(value: Any) -> str:
    """The shortest text that reads back as the same number; nothing for what was not measured."""
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def json_line(row: Mapping[str, Any]) -> str:
    """A row as JSON, which has no NaN and no infinity: they are texts, so that they differ from what is missing.

    >>> json_line({"epoch": 3, "val/loss": math.nan})
    '{"epoch": 3, "val/loss": "NaN"}'
    """
    lost = {name: value for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    return json.dumps({**row, **{name: json.dumps(value) for name, value in lost.items()}}, ensure_ascii=False)


def text_line(row: Mapping[str, Any]) -> str:
    """A row to read.

    >>> text_line({"epoch": 3, "step": 120, "val/loss": 0.25, "val/accuracy": 0.98333})
    'epoch 3  step 120  val/loss 0.2500  val/accuracy 0.9833'
    """
    words = (f"{name} {number(value) if isinstance(value, float) else value}" for name, value in row.items())
    return "  ".join(words)
