"""Orca's progress bars."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cadenza.dialects.orca.callback import Callback
from cadenza.dialects.orca.runner import Runner

__all__ = ["TqdmCallback", "is_tqdm_exists"]


def is_tqdm_exists(callbacks: list[Any]) -> bool:
    """Whether a list of callbacks has a progress bar already."""
    return any(isinstance(one, TqdmCallback) for one in callbacks)


class TqdmCallback(Callback):
    """A tqdm bar on rank 0 for each pass over training and validation data, with the loss; a counter in prediction."""

    def __init__(self) -> None:
        if find_spec("tqdm") is None:
            raise ModuleNotFoundError("orca: TqdmCallback needs tqdm: pip install 'cadenza[tqdm]'", name="tqdm")
        self._bar: Any = None

    def before_epoch(self, runner: Runner) -> None:
        self.after_epoch(runner)
        if runner.rank == 0:
            run, training = runner.run, f"epoch {runner.epochs + 1}/{runner.run.num_epochs}"
            what = {"val": "validation", "test": "test", "pred": "prediction"}.get(str(run.stage), training)
            total = len(run.loader) if hasattr(run.loader, "__len__") else None
            self._bar = import_module("tqdm").tqdm(total=total, desc=what)

    def after_iter(self, runner: Runner) -> None:
        if self._bar is None:
            return
        if hasattr(runner.run, "loss"):
            self._bar.set_postfix(loss=f"{runner.loss.item():.4f}")  # who shows a number waits for the device
        self._bar.update(1)

    def after_epoch(self, runner: Runner) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
