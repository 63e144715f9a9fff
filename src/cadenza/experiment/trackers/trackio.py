"""Trackio."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadenza.experiment.trackers.needed import need, quietly
from cadenza.experiment.trackers.tracker import Opening, Tracker, metrics_of


class Trackio(Tracker):
    """Writes a run of Trackio to its store on this machine (the environment variable TRACKIO_DIR says where);
    ``trackio show`` opens the dashboard.

    Metrics lie over the steps; hyper-parameters, images, plots, histograms and texts are written too; of other files
    the place is. A resumed run goes on in the same run of Trackio, with the step at which it did. It needs the package
    trackio.

    >>> Trackio(rows="epoch").explain()
    'rows of epochs'
    """

    def __init__(self, *, project: str | None = None, run_name: str | None = None, rows: str = "all") -> None:
        need("trackio", self.name)
        super().__init__(project=project, run_name=run_name, rows=rows)
        self._run: Any = None

    def start(self, opening: Opening) -> None:
        trackio = quietly("trackio")
        self.run_id = self.run_id if opening.goes_on else f"{opening.name} {opening.id}"
        with contextlib.redirect_stdout(io.StringIO()):  # it greets
            self._run = trackio.init(
                project=opening.project,
                name=self.run_id,
                config={name: value for name, value in opening.hyperparameters.items() if not name.startswith("_")},
                resume="allow" if opening.goes_on else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, row: dict[str, Any]) -> None:
        where = {name: row[name] for name in ("epoch",) if name in row}
        self._run.log({**where, **metrics_of(row)}, step=int(row.get("step", 0)))

    def image(self, name: str, file: str, step: int) -> None:
        if Path(file).suffix.lower() in (".png", ".jpg", ".jpeg"):
            self._run.log({name: quietly("trackio").Image(file)}, step=step)
        else:
            self.text(name, f"the plot is in {file}", step)

    def histogram(self, name: str, bins: Mapping[str, Any], step: int) -> None:
        made = quietly("trackio").Histogram(np_histogram=(bins["counts"], bins["edges"]))
        self._run.log({name: made}, step=step)

    def text(self, name: str, text: str, step: int) -> None:
        self._run.log({name: quietly("trackio").Markdown(text)}, step=step)

    def artifact(self, name: str, file: str) -> None:
        self.text(f"artifact/{name}", file, 0)

    def resume(self, step: int, rows: int) -> None:
        self._run.log({"resumed_at_step": step}, step=step)

    def finish(self, state: str) -> None:
        self._run = None
        with contextlib.redirect_stdout(io.StringIO()):
            quietly("trackio").finish()  # not run.finish(), after which the package finishes it again at exit
