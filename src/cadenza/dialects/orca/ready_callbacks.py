"""Orca's ready callbacks: checkpoints at epochs or iterations, training for a number of batches, progress bars."""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cadenza.dialects.orca.callback import Callback
from cadenza.dialects.orca.runner import Runner

__all__ = ["MaxstepsCallback", "ModelCheckpoint", "TqdmCallback", "is_tqdm_exists"]


class ModelCheckpoint(Callback):
    """Writes ``<name>.ckpt`` after every ``interval`` epochs, or iterations with ``by_epoch=False``, and ``last.ckpt``
    at the end. ``{epoch}`` and ``{iter}`` in the name become ``epoch=N`` and ``iter=N``, the number that is done.

    A folder that holds checkpoints already is refused, unless the run goes on from one.

    >>> ModelCheckpoint("model/{epoch}", interval=2).file(4)
    'model/epoch=4.ckpt'
    """

    CHECKPOINT_JOIN_CHAR = "-"

    def __init__(
        self, filepath: str = "", save_weights_only: bool = False, by_epoch: bool = True, interval: int = -1
    ) -> None:
        if not filepath:
            raise ValueError('orca: say where checkpoints go: ModelCheckpoint("folder/{epoch}")')
        if interval == 0:
            raise ValueError("orca: interval counts epochs or iterations; 0 would never save")
        self.filepath, self.save_weights_only, self.by_epoch = os.fspath(filepath), save_weights_only, by_epoch
        self.interval = 1 if interval < 0 else interval
        self.folder, self.filename = os.path.split(self.filepath)

    def before_run(self, runner: Runner) -> None:
        there = [] if "://" in self.folder or not os.path.isdir(self.folder) else os.listdir(self.folder)
        found = sorted(name for name in there if "ckpt" in name)
        if found and runner.epochs == 0:
            raise FileExistsError(
                f"orca: {self.folder!r} holds checkpoints of another run ({found[0]}); choose a new folder, or go on "
                "from one with load_checkpoint"
            )

    def after_train_epoch(self, runner: Runner) -> None:
        if self.by_epoch and self.every_n_epoch(runner, self.interval):
            runner.save_checkpoint(self.file(runner.epochs), self.save_weights_only)

    def after_train_iter(self, runner: Runner) -> None:
        if not self.by_epoch and runner.global_step % self.interval == 0:
            runner.save_checkpoint(self.file(runner.global_step), self.save_weights_only)

    def after_run(self, runner: Runner) -> None:
        runner.save_checkpoint(os.path.join(self.folder, "last.ckpt"), self.save_weights_only)

    def file(self, number: int) -> str:
        """The path of the checkpoint after ``number`` epochs or iterations."""
        name = re.sub(r"\{(epoch|iter)[^}]*\}", lambda found: f"{found[1]}={number}", self.filename)
        return os.path.join(self.folder, f"{name}.ckpt")

    @classmethod
    def get_latest_checkpoint(cls, checkpoint_dir: str) -> str:
        """``last.ckpt`` in a folder."""
        path = Path(checkpoint_dir) / "last.ckpt"
        if not path.exists():
            raise FileNotFoundError(f"orca: there is no last.ckpt in {checkpoint_dir!r}")
        return str(path)


class MaxstepsCallback(Callback):
    """Trains for ``max_step`` batches of this fit, over as many epochs as that takes. In the original a second fit
    counted those of the first."""

    def __init__(self, max_step: int) -> None:
        if max_step < 1:
            raise ValueError(f"orca: max_step must be at least 1, not {max_step!r}")
        self.max_step = max_step

    def before_run(self, runner: Runner) -> None:
        self.first = runner.global_step
        runner.num_epochs = -(-self.max_step // len(runner.train_loader))

    def after_train_iter(self, runner: Runner) -> None:
        if runner.global_step - self.first >= self.max_step:
            runner.stop = True


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
