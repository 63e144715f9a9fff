"""MLflow."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadenza.experiment.media import file_name
from cadenza.experiment.trackers.import_tracker import ask, need, quietly
from cadenza.experiment.trackers.tracker import Opening, Tracker, metrics_of
from cadenza.foundation.arguments import text

_ENDS = {"finished": "FINISHED", "failed": "FAILED"}
_LONGEST = 5000
_AT_ONCE = 100
_NEW = "new-"
"""Before the id of a run that MLflow has not made yet."""
_SERVERS = ("http://", "https://")
_TAG = "cadenza.begun"


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

    collects = True

    def __init__(
        self, uri: str | None = None, *, project: str | None = None, run_name: str | None = None, rows: str = "all"
    ) -> None:
        need("mlflow", self.name)
        super().__init__(project=project, run_name=run_name, rows=rows)
        if uri is not None:
            text(f"{self.name}: uri", uri, "the address of a server or a store, or None")
        self.uri = uri
        self._address = ""
        self._client: Any = None
        self._metrics: list[Any] = []

    def prepare(self) -> None:
        quietly("mlflow", MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")
        quietly("mlflow.tracking")
        if not self._uri().startswith(_SERVERS):
            quietly("mlflow.store.tracking.sqlalchemy_store")
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)

    def _uri(self) -> str:
        return self.uri or os.environ.get("MLFLOW_TRACKING_URI", "")

    def new_id(self, opening: Opening) -> str:
        return f"{_NEW}{os.urandom(16).hex()}"

    def start(self, opening: Opening) -> None:
        self.prepare()
        from mlflow.tracking import MlflowClient

        self._metrics = []
        self._address = self._uri() or local_store(opening.root)
        self._ask()
        self._client = MlflowClient(self._address)
        if self.run_id.startswith(_NEW):
            experiment = self._experiment(opening)
            self.run_id = self._find(experiment) or self._create(opening, experiment)
        elif opening.goes_on:
            self._client.update_run(self.run_id, status="RUNNING")

    def _ask(self) -> None:
        """Its client tries for minutes to reach a server that is down, so ask first."""
        if self._address.startswith(_SERVERS):
            ask(self._address)

    def _find(self, experiment: str) -> str | None:
        """The run that an attempt has made whose answer never arrived, or a process that was killed."""
        found = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{self.run_id}'", max_results=1)
        return str(found[0].info.run_id) if found else None

    def _create(self, opening: Opening, experiment: str) -> str:
        tags = {"cadenza.folder": str(opening.folder), _TAG: self.run_id}
        made = self._client.create_run(experiment, run_name=f"{opening.name} {opening.id}", tags=tags)
        return str(made.info.run_id)

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

        when = int(self.called_at * 1000)  # what is sent a second time is the same value for MLflow, and kept once
        self._metrics += [
            Metric(_plain(name), float(value), when, int(row.get("step", 0))) for name, value in metrics_of(row).items()
        ]

    def flush(self) -> None:
        waiting, self._metrics = self._metrics, []
        self._ask()
        for start in range(0, len(waiting), _AT_ONCE):
            self._client.log_batch(self.run_id, metrics=waiting[start : start + _AT_ONCE])

    def image(self, name: str, file: str, step: int) -> None:
        self._client.log_artifact(self.run_id, file, f"images/{file_name(name)}")

    def histogram(self, name: str, bins: Mapping[str, Any], step: int) -> None:
        self._client.log_dict(self.run_id, dict(bins), f"histograms/{file_name(name)}-{step:06d}.json")

    def text(self, name: str, text: str, step: int) -> None:
        self._client.log_text(self.run_id, text, f"texts/{file_name(name)}-{step:06d}.txt")

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Those that the run has already stay: MLflow refuses others in their place."""
        from mlflow.entities import Param

        known = self._client.get_run(self.run_id).data.params
        params = [Param(_plain(name), str(value)[:_LONGEST]) for name, value in values.items()]
        params = [param for param in params if param.key not in known]
        for start in range(0, len(params), _AT_ONCE):
            self._client.log_batch(self.run_id, params=params[start : start + _AT_ONCE])

    def artifact(self, name: str, file: str) -> None:
        self._client.log_artifact(self.run_id, file)

    def resume(self, step: int, rows: int) -> None:
        self._client.set_tag(self.run_id, "cadenza.resumed_at_step", str(step))

    def finish(self, state: str) -> None:
        self._ask()
        self._client.set_terminated(self.run_id, _ENDS.get(state, "KILLED"))
        self._client = None


def _plain(name: str) -> str:
    """A name as MLflow allows it."""
    return re.sub(r"[^\w\-. /]+", "_", name) or "_"


def local_store(root: Path) -> str:
    """The address of the store that all experiments below ``root`` share."""
    root.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{(root / 'mlflow.db').resolve().as_posix()}"
