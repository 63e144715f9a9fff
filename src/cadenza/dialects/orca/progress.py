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
            raise ModuleNotFoundError("orca: TqdmCallback needs tqdm: pip install tqdm", name="tqdm")
        self._bar: Any = None

    def before_train_epoch(self, runner: Runner) -> None:
        self._open(runner, runner.train_loader, f"epoch {runner.epochs + 1}/{runner.run.num_epochs}")

    def after_train_iter(self, runner: Runner) -> None:
        self._advance(runner)

    def before_val_epoch(self, runner: Runner) -> None:
        self._close()
        self._open(runner, runner.run.loader, "validation")

    def after_val_iter(self, runner: Runner) -> None:
        self._advance(runner)

    def after_val_epoch(self, runner: Runner) -> None:
        self._close()

    def after_train_epoch(self, runner: Runner) -> None:
        self._close()

    def before_pred_epoch(self, runner: Runner) -> None:
        self._open(runner, runner.run.loader, "prediction")

    def after_pred_iter(self, runner: Runner) -> None:
        if self._bar is not None:
            self._bar.update(1)

    def after_pred_epoch(self, runner: Runner) -> None:
        self._close()

    def _open(self, runner: Runner, loader: Any, what: str) -> None:
        if runner.rank == 0:
            self._bar = import_module("tqdm").tqdm(total=len(loader) if hasattr(loader, "__len__") else None, desc=what)

    def _advance(self, runner: Runner) -> None:
        if self._bar is None:
            return
        if hasattr(runner.run, "loss"):
            self._bar.set_postfix(loss=f"{runner.loss.item():.4f}")  # who shows a number waits for the device
        self._bar.update(1)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
