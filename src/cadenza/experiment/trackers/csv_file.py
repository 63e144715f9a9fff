"""Rows as a table in a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cadenza.experiment.trackers.tracker import Opening, Tracker
from cadenza.foundation.arguments import path as path_or_none
from cadenza.foundation.row_files import Table
from cadenza.foundation.whole_files import set_aside


class CSV(Tracker):
    """Writes every row to a csv file, ``metrics.csv`` in the folder of the run's experiment.

    There are whole lines in it at any time. A resumed run goes on in it: rows past the checkpoint are cut. A file of
    another training that is in the way is kept under another name. ``path`` is another file; ``rows`` is "all",
    "epoch" or "iter". Numbers are written so that they read back as the same.

    >>> import cadenza, tempfile, torch
    >>> from cadenza.experiment import Experiment
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, loss = tiny_classifier(), torch.nn.CrossEntropyLoss()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as root:
    ...     experiment = Experiment("digits", "first", root)
    ...     callbacks = [CSV(rows="epoch")]
    ...     trainer = cadenza.Trainer(model, sgd, loss, callbacks=callbacks, experiment=experiment, device="cpu")
    ...     history = trainer.fit(tiny_loader(), epochs=2)
    ...     (experiment.folder / "metrics.csv").read_text().splitlines()[0]
    'kind,epoch,step,batch,train/loss'
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, rows: str = "all") -> None:
        super().__init__(rows=rows)
        self.path = path_or_none(f"{self.name}: path", path)
        self._table: Table | None = None

    def start(self, opening: Opening) -> None:
        path = Path(self.path) if self.path is not None else opening.folder / "metrics.csv"
        self._table = Table(path, "csv")
        if opening.goes_on:
            self._table.read_columns()
        else:
            set_aside(path)

    def log(self, row: dict[str, Any]) -> None:
        assert self._table is not None
        self._table.append([row])

    def resume(self, step: int, rows: int) -> None:
        assert self._table is not None
        self._table.cut(rows)

    def finish(self, state: str) -> None:
        self._table = None
