"""MLflow."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadenza.callbacks.arguments import text
from cadenza.experiment.media import file_name
from cadenza.experiment.trackers.needed import need, quietly
from cadenza.experiment.trackers.tracker import Opening, Tracker, metrics_of

_ENDS = {"finished": "FINISHED", "failed": "FAILED"}
_LONGEST = 5000
_AT_ONCE = 100


class MLflow(Tracker):
    """Writes a run of MLflow: metrics over the steps, hyper-parameters, images, plots, histograms, texts and files.

    ``uri`` is the store. Without it, it is what the environment variable MLFLOW_TRACKING_URI says, else the database
    ``mlflow.db`` in the root of the experiments, which all runs share: ``mlflow ui --backend-store-uri
    sqlite:///runs/mlflow.db`` shows them. The project of the experiment is MLflow's experiment. A resumed run goes on
    in the same run of MLflow, with a tag that says where; MLflow keeps values past the checkpoint beside the new ones.
    It needs the package mlflow, and tells its makers nothing unless mlflow was imported before.

    >>> MLflow(rows="epoch").explain()
    'rows of epochs'
    """

    def __init__(
        self, uri: str | None = None, *, project: str | None = None, run_name: str | None = None, rows: str = "all"
    ) -> None:
        need("mlflow", self.name)
        super().__init__(project=project, run_name=run_name, rows=rows)
        if uri is not None:
            text(f"{self.name}: uri", uri, "the address of a server or a store, or None")
        self.uri = uri
        self._client: Any = None
        self._metrics: list[Any] = []

    def start(self, opening: Opening) -> None:
        quietly("mlflow", MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._metrics = []
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or local_store(opening.root)
        self._client = MlflowClient(uri)
        if opening.goes_on:
            self._client.update_run(self.run_id, status="RUNNING")
            return
        name = f"{opening.name} {opening.id}"
        tags = {"cadenza.folder": str(opening.folder)}
        self.run_id = self._client.create_run(self._experiment(opening), run_name=name, tags=tags).info.run_id

    def _experiment(self, opening: Opening) -> str:
        found = self._client.get_experiment_by_name(opening.project)
        if found is not None:
            return str(found.experiment_id)
        place = None
        if self._client.tracking_uri.startswith("sqlite"):
            place = (opening.root / "mlflow-artifacts").resolve().as_uri()
        return str(self._client.create_experiment(opening.project, artifact_location=place))

    def log(self, row: dict[str, Any]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._metrics += [
            Metric(_plain(name), float(value), now, int(row.get("step", 0))) for name, value in metrics_of(row).items()
        ]
        if len(self._metrics) > _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        waiting, self._metrics = self._metrics, []
        for start in range(0, len(waiting), _AT_ONCE):
            self._client.log_batch(self.run_id, metrics=waiting[start : start + _AT_ONCE])

    def image(self, name: str, file: str, step: int) -> None:
        self._client.log_artifact(self.run_id, file, f"images/{file_name(name)}")

    def histogram(self, name: str, bins: Mapping[str, Any], step: int) -> None:
        self._client.log_dict(self.run_id, dict(bins), f"histograms/{file_name(name)}-{step:06d}.json")

    def text(self, name: str, text: str, step: int) -> None:
        self._client.log_text(self.run_id, text, f"texts/{file_name(name)}-{step:06d}.txt")

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(_plain(name), str(value)[:_LONGEST]) for name, value in values.items()]
        for start in range(0, len(params), _AT_ONCE):
            self._client.log_batch(self.run_id, params=params[start : start + _AT_ONCE])

    def artifact(self, name: str, file: str) -> None:
        self._client.log_artifact(self.run_id, file)

    def resume(self, step: int, rows: int) -> None:
        self._client.set_tag(self.run_id, "cadenza.resumed_at_step", str(step))

    def finish(self, state: str) -> None:
        self.flush()
        self._client.set_terminated(self.run_id, _ENDS.get(state, "KILLED"))
        self._client = None


def _plain(name: str) -> str:
    """A name as MLflow allows it."""
    return re.sub(r"[^\w\-. /]+", "_", name) or "_"


def local_store(root: Path) -> str:
    """The address of the store that all experiments below ``root`` share."""
    root.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{(root / 'mlflow.db').resolve().as_posix()}"
