"""The history of a training in a file that other programs read."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from cadenza.callback import Callback, Order
from cadenza.callbacks.faults import Faults, tolerant
from cadenza.callbacks.folders import place_for
from cadenza.foundation.arguments import file_format, one_of, whole
from cadenza.foundation.row_files import FORMATS, Table
from cadenza.foundation.warn import warn
from cadenza.foundation.whole_files import set_aside
from cadenza.history import Row, read

if TYPE_CHECKING:
    from cadenza.run import Run

log = logging.getLogger("cadenza")


class HistoryFile(Callback, Faults):
    """Writes the rows of the history to a file, each as soon as it is complete.

    A csv file, with the epoch counted from 0:

        epoch,step,batch,train/loss,val/loss
        0,3,3,1.1046085357666016,1.0341672897338867
        1,6,6,0.9781135320663452,0.9336996078491211

    There are whole lines in it at any time, whenever the process dies. A column that appears later is put behind the
    others, for which the file is written anew. Numbers are written so that they read back as the same. A fit that goes
    on, or is resumed, begins by writing the earlier rows of its history, so that none is missing or there twice. The
    file of another training that is in the way is kept: it becomes ``history.1.csv``.

    ``path`` is the file; it ends in csv, tsv, jsonl (where NaN is the text "NaN") or txt (lines to read, with four
    digits, and the epoch counted from 1). Without it, the file is ``history.csv`` in the folder of the run's
    experiment, else in ``runs``; ``format`` chooses another ending there. ``rows`` is "epoch" for one row an epoch,
    "iter" for those of iterations in which something was logged and of validations within an epoch, or "all". Rows of
    iterations are read from the device and written ``flush_every`` at a time, and at the end of the epoch. With
    ``on_error="warn"`` a failure to write switches it off with a warning; otherwise it ends the run. A disk that
    is full or fails does neither: the rows wait, and one warning says so.

    >>> import cadenza, tempfile, torch
    >>> from pathlib import Path
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, loss = tiny_classifier(), torch.nn.CrossEntropyLoss()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = HistoryFile(Path(folder) / "history.txt")
    ...     trainer = cadenza.Trainer(model, sgd, loss, callbacks=[file], device="cpu")
    ...     history = trainer.fit(tiny_loader(), epochs=2)
    ...     print((Path(folder) / "history.txt").read_text())  # doctest: +ELLIPSIS
    epoch 1  step 3  batch 3  train/loss ...
    epoch 2  step 6  batch 6  train/loss ...
    """

    order = Order.REPORT
    ranks = "main"

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        format: str | None = None,
        rows: str = "epoch",
        flush_every: int = 100,
        on_error: str = "raise",
    ) -> None:
        self.path, self.format = path, file_format(self.name, path, format, FORMATS)
        one_of(f"{self.name}: rows", rows, ("epoch", "iter", "all"))
        whole(f"{self.name}: flush_every", flush_every, 1, "is")
        self.rows, self.flush_every = rows, flush_every
        self._check_on_error(on_error)
        self._forget()

    def _forget(self) -> None:
        self._table: Table | None = None
        self._waiting: list[Row] = []
        self._earlier: list[Row] = []

    def explain(self) -> str:
        what = {"epoch": "a row an epoch", "iter": "the rows of iterations", "all": "all rows"}[self.rows]
        return f"writes {what} as {self.format}"

    # Points ---------------------------------------------------------------------------------------------------------

    def after_register(self, run: Run) -> None:
        self._forget()
        # The row of an epoch that a save in its validation left open is written when it is complete, not before.
        self._earlier = [row for row in run.history.rows if row.complete and self.rows in ("all", row.kind)]

    @tolerant
    def after_log(self, run: Run) -> None:
        row = run.row
        if run.mode != "fit" or row is None or self.rows not in ("all", row.kind):
            return
        self._waiting.append(row)
        if row.kind == "epoch" or len(self._waiting) >= self.flush_every:
            self._flush(run)

    @tolerant
    def after_epoch(self, run: Run) -> None:
        self._flush(run)

    @tolerant
    def after_run(self, run: Run) -> None:
        self._flush(run)

    def after_error(self, run: Run) -> None:
        if self._is_off(run):
            return
        try:
            self._flush(run)
        except Exception as error:  # after a failure of the device its values cannot be read any more
            warn(f"{self.name} could not write the last {len(self._waiting)} rows: {error}")

    def close(self) -> None:
        self._forget()

    # Writing --------------------------------------------------------------------------------------------------------

    def _flush(self, run: Run) -> None:
        if not self._waiting:
            return
        if self._table is None:
            self._table = self._begin(run)
        self._table.append(self._read(self._waiting))
        self._waiting = []

    def _begin(self, run: Run) -> Table:
        """Brings the file to where this run began."""
        table = Table(place_for(run, self.path, f"history.{self.format}"), self.format)
        if self._earlier:
            table.rewrite(self._read(self._earlier))
        elif kept := set_aside(table.path):
            log.info("%s: the file of an earlier training was kept as %s", self.name, kept)
        return table

    def _read(self, rows: list[Row]) -> list[dict[str, Any]]:
        values = iter(read(value for row in rows for value in row.raw().values()))  # the one wait for all of them
        found = []
        for row in rows:
            kind = {"kind": row.kind} if self.rows == "all" else {}
            at = _to_read(row.at) if self.format == "txt" else row.at
            found.append({**kind, **at, **{name: next(values) for name in row.raw()}})
        return found


def _to_read(at: dict[str, Any]) -> dict[str, Any]:
    """Where a row stands, for people, who count epochs from 1."""
    return {name: value + 1 if name == "epoch" else value for name, value in at.items()}
