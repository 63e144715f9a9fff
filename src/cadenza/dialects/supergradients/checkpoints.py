"""Files of a run in SuperGradients' layout: ``<root>/<experiment>/RUN_<time>_<id>/ckpt_latest.pth`` and others."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from cadenza.callback import Callback, Order
from cadenza.dialects.aitoolbox.folders import load_state, save_state
from cadenza.dialects.aitoolbox.model_save import plain_state

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
        state = self.session.state(run)
        save_state(folder / params.ckpt_name, state)
        if self.improved:
            save_state(folder / params.ckpt_best_name, state)
        if run.epoch in params.save_ckpt_epoch_list:
            save_state(folder / f"ckpt_epoch_{run.epoch}.pth", state)
        self.improved = False


def training_state(session: Session, run: Run) -> dict[str, Any]:
    """All that is needed to go on, under the original's keys; ``clock`` and ``callbacks`` are ours."""
    state: dict[str, Any] = {
        "net": run.module.state_dict(),
        "acc": run.best.value if run.best else None,
        "epoch": run.epoch + 1,
        "metrics": dict(run.metrics),
        "packages": session.packages,
        "_best_ckpt_metrics": {} if run.best is None else {run.best.name: run.best.value},
        "optimizer_state_dict": run.optimizer.state_dict(),
        "clock": run.clock.state_dict(),
        "callbacks": {one.name: plain_state(one.state_dict()) for one in session.stateful(run)},
    }
    if run.scaler is not None:
        state["scaler_state_dict"] = run.scaler.state_dict()
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
    if session.ema is not None and "ema_net" in state:
        session.ema.load_state_dict({"average": state["ema_net"], "updates": state.get("ema_updates", 0)})
    saved = state.get("callbacks", {})
    for callback in trainer.callbacks:
        if callback.name in saved:
            callback.load_state_dict(saved[callback.name])
    return int(state["epoch"])


def installed_packages() -> dict[str, str]:
    """The versions of all packages of this environment."""
    return {str(one.name): str(one.version) for one in metadata.distributions()}
