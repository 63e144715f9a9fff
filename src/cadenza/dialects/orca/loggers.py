"""Orca's callbacks that write to TensorBoard and to Weights & Biases."""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib import import_module
from typing import Any

from cadenza.dialects.orca.callback import Callback
from cadenza.dialects.orca.runner import Runner

COUNTS = ("epoch", "batch_count", "num_samples")
__all__ = ["TensorBoardCallback", "WandbLoggerCallback"]


class TensorBoardCallback(Callback):
    """Writes losses and metrics on rank 0: after each epoch, each batch, or every so many batches (a number). Batches
    are counted from 0 over all epochs; in the original each epoch wrote over the last. A remote ``log_dir`` is
    filled at the end of the run."""

    def __init__(self, log_dir: str | None = None, freq: str | int = "epoch", **kwargs: Any) -> None:
        if freq not in ("epoch", "batch") and not (isinstance(freq, int) and freq > 0):
            raise ValueError(f'orca: freq is "epoch", "batch" or a number of batches, not {freq!r}')
        if log_dir is None:
            raise ValueError("orca: say where the events go: TensorBoardCallback(log_dir=...)")
        self.log_dir, self.freq, self.kwargs = os.fspath(log_dir), freq, kwargs
        self._writer: Any = None

    def before_run(self, runner: Runner) -> None:
        if runner.rank == 0:
            self._is_remote = "://" in self.log_dir
            self._folder = tempfile.mkdtemp() if self._is_remote else self.log_dir
            self._writer = import_module("torch.utils.tensorboard").SummaryWriter(self._folder, **self.kwargs)

    def after_train_iter(self, runner: Runner) -> None:
        every = 0 if self.freq == "epoch" else 1 if self.freq == "batch" else int(self.freq)
        if self._writer is not None and every and runner.batch_idx % every == 0:
            self._writer.add_scalar("train_loss", runner.metrics_stats["train_loss"], runner.global_step - 1)

    def after_train_epoch(self, runner: Runner) -> None:
        if self._writer is not None and self.freq == "epoch":
            for name, value in runner.epoch_stats.items():
                if name not in COUNTS and isinstance(value, int | float):
                    self._writer.add_scalar(name, value, runner.epochs)

    def after_run(self, runner: Runner) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        if self._is_remote:
            filesystem, inside = import_module("fsspec").core.url_to_fs(self.log_dir)
            filesystem.put(self._folder + "/", inside, recursive=True)
            shutil.rmtree(self._folder)


class WandbLoggerCallback(Callback):
    """Logs ``epoch_stats`` after each training epoch, on rank 0. Further arguments are those of ``wandb.init``."""

    def __init__(self, project: str, log_config: bool = False, watch_model: bool = False, **kwargs: Any) -> None:
        self.project, self.log_config, self.watch_model, self.kwargs = project, log_config, watch_model, kwargs
        self.run: Any = None

    def before_run(self, runner: Runner) -> None:
        if runner.rank != 0:
            return
        config = {"config": runner.config} if self.log_config else {}
        self.run = import_module("wandb").init(project=self.project, **(config | self.kwargs))
        if self.watch_model:
            self.run.watch(runner.models[0])

    def after_train_epoch(self, runner: Runner) -> None:
        if self.run is not None:
            self.run.log(runner.epoch_stats)

    def after_run(self, runner: Runner) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None
