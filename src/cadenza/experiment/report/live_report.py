"""The report of a run while it goes on."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Self

from cadenza.callback import Callback, Order
from cadenza.clock import Cadence, Duration
from cadenza.experiment.make_folder import FolderError
from cadenza.experiment.report.page import write_report
from cadenza.foundation.arguments import path as path_or_none
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.run import Run

_SHARE = 0.02
"""The share of a run's time that reports may take while it goes on."""


class Report(Callback):
    """Writes the report of the run after each epoch and at the end: one file that a browser opens from disk.

    ![A report with curves and pictures](images/report_light.png)

    The run needs an experiment, whose folder it is made from. An ``Experiment`` writes its report at the end by itself;
    this callback writes it while the run goes on too, or to another place. ``path`` is the file, else ``report.html``
    in the folder. ``every`` is an interval such as "5 epochs" or "10 minutes"; a report that would take more than 2 %
    of the time so far waits for the next. A report that cannot be made is warned of, once, and ends nothing.

    >>> import cadenza, tempfile, torch
    >>> from cadenza.experiment import Experiment
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, loss = tiny_classifier(), torch.nn.CrossEntropyLoss()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as root:
    ...     experiment = Experiment("digits", "first", root)
    ...     callbacks = [Report(every="1 epoch")]
    ...     trainer = cadenza.Trainer(model, sgd, loss, callbacks=callbacks, experiment=experiment, device="cpu")
    ...     history = trainer.fit(tiny_loader(), epochs=2)
    ...     experiment.report_file.read_text()[:15]
    '<!doctype html>'
    """

    order = Order.SAVE + 500_000  # after those who draw and measure
    ranks = "main"
    passive = True

    def __init__(self, every: str | Duration = "1 epoch", *, path: str | os.PathLike[str] | None = None) -> None:
        self.every = Duration.interval(every, "every")
        self.path = path_or_none(f"{self.name}: path", path)
        self._forget()

    def _forget(self) -> None:
        self._folder: Path | None = None
        self._cadence: Cadence | None = None
        self._began = monotonic()
        self._spent = 0.0
        self._warned = False

    @classmethod
    def example(cls) -> Self:
        return cls(every="1 epoch")

    def explain(self) -> str:
        return f"every {self.every}"

    def after_register(self, run: Run) -> None:
        self._forget()
        self._folder = getattr(run.experiment, "folder", None)
        if self._folder is None:
            warn(
                f"{self.name} makes a report from the folder of an experiment, and this run has none: "
                'Trainer(..., experiment=Experiment("project", "name"))'
            )
        self._cadence = Cadence(self.every, run.clock)

    def after_epoch(self, run: Run) -> None:
        due = self._cadence is not None and self._cadence.due()
        if due and self._spent <= _SHARE * (monotonic() - self._began):
            self._write()

    def close(self) -> None:
        self._write()
        self._forget()

    def _write(self) -> None:
        if self._folder is None:
            return
        began = monotonic()
        try:
            write_report(self._folder, self.path)
        except (OSError, FolderError, ValueError) as error:
            if not self._warned:
                self._warned = True
                warn(f"{self.name} could not write its report: {error}")
        self._spent += monotonic() - began
