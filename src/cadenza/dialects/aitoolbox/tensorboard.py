"""Callbacks that write to TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cadenza.dialects.aitoolbox.abstract import AbstractExperimentCallback
from cadenza.dialects.aitoolbox.folders import folder_of

__all__ = ["TensorboardFullTracking", "TensorboardTrainBatchLoss", "TensorboardTrainHistoryMetric"]


class TensorboardReporter(AbstractExperimentCallback):
    """Opens a writer at the beginning of the training and closes it at its end."""

    def __init__(self, callback_name: str, log_dir: str | None, is_project: bool, **details: Any) -> None:
        super().__init__(callback_name, **details, execution_order=97, device_idx_execution=0)
        if not is_project and log_dir is None:
            raise ValueError(f"{type(self).__name__}: outside a project say where to write: log_dir=...")
        self.log_dir, self.is_project = log_dir, is_project
        self.writer: Any = None

    def on_train_loop_registration(self) -> None:
        if self.is_project:
            self.try_infer_experiment_details()

    def on_train_begin(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = folder_of(self) / (self.log_dir or "tensorboard") if self.is_project else Path(str(self.log_dir))
        self.writer = SummaryWriter(str(folder))

    def log(self, name: str, value: Any, step: int) -> None:
        if isinstance(value, dict):
            for part, number in value.items():
                self.log(f"{name}/{part}", number, step)
        else:
            self.writer.add_scalar(name, float(value), step)

    def on_train_end(self) -> None:
        self.writer.close()


class TensorboardTrainBatchLoss(TensorboardReporter):
    """Writes the loss of every ``batch_log_frequency``-th batch and the mean of the epoch so far."""

    def __init__(
        self, batch_log_frequency: int = 1, log_dir: str | None = None, is_project: bool = True, **details: Any
    ) -> None:
        super().__init__("Tensorboard batch loss", log_dir, is_project, **details)
        self.batch_log_frequency = batch_log_frequency

    def on_batch_end(self) -> None:
        loop = self.train_loop_obj
        step = loop.total_iteration_idx
        if loop.loss_batch_accum and (step + 1) % self.batch_log_frequency == 0:
            self.log("train_loss/last_batch", loop.loss_batch_accum[-1], step)
            self.log("train_loss/accumulated_loss", loop.parse_loss(loop.loss_batch_accum), step)


class TensorboardTrainHistoryMetric(TensorboardReporter):
    """Writes the last values of the history at the end of each epoch: all, or those in ``metric_names``."""

    def __init__(
        self,
        metric_names: Sequence[str] | None = None,
        log_dir: str | None = None,
        is_project: bool = True,
        **details: Any,
    ) -> None:
        super().__init__("Tensorboard history metrics", log_dir, is_project, **details)
        self.metric_names = metric_names

    def on_epoch_end(self) -> None:
        loop = self.train_loop_obj
        for name in self.metric_names or list(loop.train_history.keys()):
            if loop.train_history[name]:
                self.log(f"val_test_train_metrics/{name}", loop.train_history[name][-1], loop.epoch)


class TensorboardFullTracking(TensorboardReporter):
    """Both: the losses of batches and the metrics of epochs."""

    def __init__(
        self,
        metric_names: Sequence[str] | None = None,
        batch_log_frequency: int = 1,
        log_dir: str | None = None,
        is_project: bool = True,
        **details: Any,
    ) -> None:
        super().__init__("Tensorboard full tracking", log_dir, is_project, **details)
        self.metric_names, self.batch_log_frequency = metric_names, batch_log_frequency

    on_batch_end = TensorboardTrainBatchLoss.on_batch_end
    on_epoch_end = TensorboardTrainHistoryMetric.on_epoch_end
