"""Orca's checkpoints at epochs or iterations."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cadenza.dialects.orca.callback import Callback
from cadenza.dialects.orca.runner import Runner

__all__ = ["ModelCheckpoint"]


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
