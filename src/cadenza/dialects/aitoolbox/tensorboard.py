"""Callbacks that write to TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cadenza.dialects.aitoolbox.abstract import CLOUD, PLACE, AbstractExperimentCallback
from cadenza.dialects.aitoolbox.folders import folder_of, upload
from cadenza.foundation.tree import leaves

__all__ = [
    "TensorboardFullTracking", "TensorboardReporterBaseCB", "TensorboardTrainBatchLoss",
    "TensorboardTrainHistoryMetric",
]  # fmt: skip


class TensorboardReporterBaseCB(AbstractExperimentCallback):
    """Opens a writer at the beginning of the training and closes it at its end. ``options`` are those of
    ``SummaryWriter``; ``details`` those of the experiment, as ``AbstractExperimentCallback`` takes them."""

    def __init__(
        self, callback_name: str, log_dir: str | None = None, is_project: bool = True, *details: Any, **named: Any
    ) -> None:
        own = {name: named.pop(name) for name in list(named) if name in (*PLACE, *CLOUD)}
        super().__init__(callback_name, *details, **own)
        self.execution_order, self.device_idx_execution = 97, 0
        self.log_dir, self.is_project, self.options = log_dir, is_project, named
        self.metric_names: Sequence[str] | None = None
        self.batch_log_frequency = 1
        self.writer: Any = None

    def on_train_loop_registration(self) -> None:
        if self.is_project:
            self.try_infer_experiment_details(infer_cloud_details=True)

    def on_train_begin(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self.is_project:
            name = f"{self.project_name}_{self.experiment_name}"
            self.log_dir = str(folder_of(self) / (self.log_dir or "tensorboard") / name)
        self.writer = SummaryWriter(self.log_dir, **self.options)

    def log_mid_train_loss(self) -> None:
        """Writes the loss of every ``batch_log_frequency``-th batch and the mean of the epoch so far."""
        loop = self.train_loop_obj
        step, losses = loop.total_iteration_idx, loop.loss_batch_accum
        if losses and step % self.batch_log_frequency == 0:
            self.log("train_loss/last_batch_loss", losses[-1], step)
            self.log("train_loss/accumulated_batch_loss", loop.parse_loss(losses), step)

    def log_train_history_metrics(self, metric_names: Sequence[str] | None) -> None:
        """Writes the last values of the history: all, or those in ``metric_names``."""
        loop = self.train_loop_obj
        for name in metric_names or list(loop.train_history.keys()):
            if loop.train_history[name]:
                kind = "loss" if "loss" in name else "metrics"
                self.log(f"{kind}/{name}", loop.train_history[name][-1], loop.epoch)

    def log(self, name: str, value: Any, step: int) -> None:
        for path, number in leaves(value):
            self.writer.add_scalar("/".join([name, *map(str, path)]), float(number), step)

    def on_train_end(self) -> None:
        self.writer.close()
        if self.is_project:
            upload(self, *(file for file in Path(str(self.log_dir)).rglob("*") if file.is_file()))


class TensorboardTrainBatchLoss(TensorboardReporterBaseCB):
    """Writes the loss of every ``batch_log_frequency``-th batch and the mean of the epoch so far."""

    def __init__(self, batch_log_frequency: int = 1, *details: Any, **named: Any) -> None:
        super().__init__("Tensorboard batch loss", *details, **named)
        self.batch_log_frequency = batch_log_frequency

    def on_batch_end(self) -> None:
        self.log_mid_train_loss()


class TensorboardTrainHistoryMetric(TensorboardReporterBaseCB):
    """Writes the last values of the history at the end of each epoch: all, or those in ``metric_names``."""

    def __init__(self, metric_names: Sequence[str] | None = None, *details: Any, **named: Any) -> None:
        super().__init__("Tensorboard history metrics", *details, **named)
        self.metric_names = metric_names

    def on_epoch_end(self) -> None:
        self.log_train_history_metrics(self.metric_names)


class TensorboardFullTracking(TensorboardReporterBaseCB):
    """Both: the losses of batches and the metrics of epochs."""

    def __init__(
        self, metric_names: Sequence[str] | None = None, batch_log_frequency: int = 1, *details: Any, **named: Any
    ) -> None:
        super().__init__("Tensorboard full tracking", *details, **named)
        self.metric_names, self.batch_log_frequency = metric_names, batch_log_frequency

    on_batch_end = TensorboardTrainBatchLoss.on_batch_end
    on_epoch_end = TensorboardTrainHistoryMetric.on_epoch_end
