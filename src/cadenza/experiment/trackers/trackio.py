"""Trackio."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadenza.experiment.trackers.import_tracker import muted, need, quietly
from cadenza.experiment.trackers.tracker import Opening, Tracker, metrics_of

_PROBE = 1 << 16
"""Bytes for which there has to be room."""


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
        self._checked = False

    def prepare(self) -> None:
        quietly("trackio")

    def new_id(self, opening: Opening) -> str:
        return f"{opening.name} {opening.id}"

    def start(self, opening: Opening) -> None:
        trackio = quietly("trackio")
        _check_store()
        with muted():  # it greets
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
        if not self._checked:
            _check_store()
            self._checked = True
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

    def flush(self) -> None:
        self._checked = False

    def finish(self, state: str) -> None:
        self._run = None  # both in the thread that called init()
        with muted():
            quietly("trackio").finish()  # not run.finish(), after which the package finishes it again at exit


def _check_store() -> None:
    """Raises an error if nothing can be written to the store. The package writes in a thread of its own, which drops
    what it cannot write, so a batch is only handed to it after this."""
    folder = Path(quietly("trackio.utils").TRACKIO_DIR)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(_PROBE))
