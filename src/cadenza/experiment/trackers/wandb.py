"""Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadenza.experiment.media import file_name
from cadenza.experiment.trackers.import_tracker import ask, need, quietly
from cadenza.experiment.trackers.tracker import Opening, Tracker, metrics_of
from cadenza.foundation.arguments import one_of
from cadenza.foundation.arguments import path as path_or_none
from cadenza.foundation.environment import environment_with

MODES = ("offline", "online")
_UPLOAD = 120.0
"""Seconds that the package waits at the end of a run, and of the process, for its server; ``wandb sync`` sends later
what it has not sent."""


class WandB(Tracker):
    """Writes a run of Weights & Biases, by default offline: to ``wandb`` in the folder of the run's experiment, from
    where ``wandb sync`` sends it. ``mode="online"`` sends it as it goes.

    Metrics lie over the steps; hyper-parameters, images, plots, histograms, texts and files are written too. A resumed
    run goes on under the same id, with the step at which it did. It needs the package wandb.

    >>> WandB(rows="epoch").store_mode
    'offline'
    """

    def __init__(
        self,
        *,
        mode: str = "offline",
        project: str | None = None,
        run_name: str | None = None,
        path: str | os.PathLike[str] | None = None,
        rows: str = "all",
    ) -> None:
        need("wandb", self.name)
        one_of(f"{self.name}: mode", mode, MODES)
        super().__init__(project=project, run_name=run_name, rows=rows)
        self.store_mode, self.path = mode, path_or_none(f"{self.name}: path", path)
        self._run: Any = None

    def prepare(self) -> None:
        quietly("wandb", WANDB_ERROR_REPORTING="false")

    def new_id(self, opening: Opening) -> str:
        return opening.id

    def start(self, opening: Opening) -> None:
        wandb = quietly("wandb", WANDB_ERROR_REPORTING="false")
        folder = Path(self.path) if self.path is not None else opening.folder
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            save_code=False,
            disable_job_creation=True,
            x_disable_stats=True,
            x_disable_meta=True,
            finish_timeout=_UPLOAD,
        )
        if self.store_mode == "online":
            ask(wandb.Settings().base_url if settings.base_url is None else settings.base_url)
        again = {"resume": "allow"} if self.store_mode == "online" else {}
        with environment_with({"WANDB_ERROR_REPORTING": "false"}):
            self._run = wandb.init(
                project=opening.project,
                name=f"{opening.name} {opening.id}",
                id=self.run_id,
                dir=str(folder),
                mode=self.store_mode,
                settings=settings,
                reinit="create_new",
                **again,
            )

    def log(self, row: dict[str, Any]) -> None:
        where = {name: row[name] for name in ("epoch",) if name in row}
        self._run.log({**where, **metrics_of(row)}, step=int(row.get("step", 0)))

    def image(self, name: str, file: str, step: int) -> None:
        if Path(file).suffix.lower() not in (".png", ".jpg", ".jpeg"):
            self.artifact(Path(file).name, file)
            return
        self._run.log({name: quietly("wandb").Image(file)}, step=step)

    def histogram(self, name: str, bins: Mapping[str, Any], step: int) -> None:
        self._run.log({name: quietly("wandb").Histogram(np_histogram=(bins["counts"], bins["edges"]))}, step=step)

    def text(self, name: str, text: str, step: int) -> None:
        self._run.log({name: quietly("wandb").Table(columns=["text"], data=[[text]])}, step=step)

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def artifact(self, name: str, file: str) -> None:
        artifact = quietly("wandb").Artifact(file_name(f"{name}-{self.run_id}"), type="file")
        artifact.add_file(file)
        self._run.log_artifact(artifact)

    def resume(self, step: int, rows: int) -> None:
        self._run.config.update({"resumed_at_step": step}, allow_val_change=True)

    def finish(self, state: str) -> None:
        run, self._run = self._run, None
        run.finish(exit_code=0 if state == "finished" else 1)
