"""Files of a run in SuperGradients' layout: ``<root>/<experiment>/RUN_<time>_<id>/ckpt_latest.pth`` and others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from cadenza.callback import Callback, Order
from cadenza.dialects.aitoolbox.folders import load_state, plain_state, save_state
from cadenza.history import Best
from cadenza.resume.collect import gradients_of

if TYPE_CHECKING:
    from cadenza.dialects.supergradients.session import Session
    from cadenza.run import Run


log = logging.getLogger("cadenza")


def new_run_folder(root: Path, experiment: str) -> Path:
    """A folder that no other run has; by their names, runs are in the order in which they were begun."""
    return root / experiment / f"RUN_{datetime.now():%Y%m%d_%H%M%S_%f}{uuid4().hex[:4]}"


def folder_to_resume(root: Path, experiment: str, run_id: str | None, file: str) -> Path:
    """The run that is gone on with: the one called ``run_id``, or the last that has a checkpoint."""
    runs = sorted(path.parent for path in (root / experiment).glob(f"RUN_*/{file}"))
    if run_id is not None:
        runs = [path for path in runs if path.name in (run_id, f"RUN_{run_id}")]
    if not runs:
        raise FileNotFoundError(f"supergradients: there is no run to resume in {root / experiment}: no RUN_*/{file}")
    return runs[-1]


class SaveCheckpoints(Callback):
    """Writes the latest and the best state at the end of each epoch, and those of chosen epochs."""

    order = Order.SAVE
    ranks = "main"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.improved = False

    def after_best(self, run: Run) -> None:
        self.improved = True

    def after_epoch(self, run: Run) -> None:
        params, folder = self.session.params, self.session.folder
        if run.clock.epochs <= run.epoch:
            return  # it was cut short
        state = training_state(self.session, run, self.improved)
        save_state(folder / params.ckpt_name, state)
        if self.improved:
            save_state(folder / params.ckpt_best_name, state)
        if run.epoch in params.save_ckpt_epoch_list:
            save_state(folder / f"ckpt_epoch_{run.epoch}.pth", state)
        self.improved = False


def training_state(session: Session, run: Run, improved: bool) -> dict[str, Any]:
    """All that is needed to go on, under the original's keys and four of ours: ``clock``, ``callbacks``, ``best`` and
    ``accumulated``."""
    losses, found = session.main.names, session.section.upkeep.found
    measured: dict[str, Any] = {"tracked_metric_name": session.params.metric_to_watch}
    for ours, stage in (("val", "valid"), ("train", "train")):
        measured[stage] = {name: value for name, value in found.get(ours, {}).items() if name not in losses}
    if improved:
        session.best_metrics = measured
    state: dict[str, Any] = {
        "net": run.module.state_dict(),
        "acc": run.metrics.get(session.watch) if session.watch else None,
        "epoch": run.epoch + 1,
        "metrics": measured,
        "packages": session.packages,
        "_best_ckpt_metrics": session.best_metrics,
        "best": None if run.best is None else asdict(run.best),
        "optimizer_state_dict": run.optimizer.state_dict(),
        "clock": run.clock.state_dict(),
        "callbacks": {one.name: plain_state(one.state_dict()) for one in session.stateful(run)},
    }
    if run.scaler is not None:
        state["scaler_state_dict"] = run.scaler.state_dict()
    if session.accumulate is not None and session.accumulate.window.batches:
        state["accumulated"] = {"window": session.accumulate.state_dict(), "gradients": gradients_of(run)}
    if session.ema is not None and session.ema.average:
        state["ema_net"] = dict(session.ema.average)
        state["ema_updates"] = session.ema.updates
    return state


def restore(session: Session, path: Path) -> int:
    """Loads what ``training_state`` wrote, and returns how many epochs were done."""
    state = load_state(path)
    trainer, params = session.trainer, session.params
    odd = trainer.model.load_state_dict(state["net"], strict=params.resume_strict_load)
    if odd.missing_keys or odd.unexpected_keys:
        log.warning("%s does not fit the model: missing %s, unexpected %s", path, *odd)
    if params.load_opt_params and "optimizer_state_dict" in state:
        session.optimizer.load_state_dict(state["optimizer_state_dict"])
    if isinstance(clock := state.get("clock"), Mapping):
        trainer.clock.load_state_dict(dict(clock))
    trainer.clock.epochs = int(state["epoch"])
    session.best_metrics = state.get("_best_ckpt_metrics", {})
    if state.get("best"):
        trainer._training.best = Best(**state["best"])
    if session.ema is not None and "ema_net" in state:
        session.ema.load_state_dict({"average": state["ema_net"], "updates": state.get("ema_updates", 0)})
    if session.accumulate is not None and "accumulated" in state:
        session.accumulate.load_state_dict(state["accumulated"]["window"])
        session.gradients = state["accumulated"]["gradients"]
    saved = state.get("callbacks", {})
    for callback in trainer.callbacks:
        if callback.name in saved:
            callback.load_state_dict(saved[callback.name])
    return int(state["epoch"])


@cache
def installed_packages() -> dict[str, str]:
    """The versions of all packages of this environment."""
    return {str(one.name): str(one.version) for one in metadata.distributions()}
