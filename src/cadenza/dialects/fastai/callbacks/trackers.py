"""Callbacks that write to TensorBoard and to MLflow."""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.dialects.fastai.recorder import LearnerCallback

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = ["LearnerTensorboardWriter", "MLFlowTracker"]


class LearnerTensorboardWriter(LearnerCallback):
    """Writes the loss every ``loss_iters`` batches, histograms of the weights every ``hist_iters``, norms of the
    gradients every ``stats_iters``, and metrics after each epoch, to ``base_dir/name``."""

    def __init__(
        self, learn: Learner, base_dir: str | PathLike[str], name: str, loss_iters: int = 25, hist_iters: int = 500,
        stats_iters: int = 100,
    ) -> None:  # fmt: skip
        super().__init__(learn)
        self.log_dir = Path(base_dir) / name
        self.loss_iters, self.hist_iters, self.stats_iters = loss_iters, hist_iters, stats_iters
        self.tbwriter: Any = None

    def on_train_begin(self, **kwargs: Any) -> None:
        self.tbwriter = import_module("torch.utils.tensorboard").SummaryWriter(str(self.log_dir))

    def on_backward_end(self, iteration: int, **kwargs: Any) -> None:
        if iteration % self.stats_iters == 0:
            norms = [p.grad.norm() for p in self.learn._module.parameters() if p.grad is not None]
            if norms:
                self.tbwriter.add_scalar("gradients/max_norm", float(max(norms)), iteration)

    def on_batch_end(self, last_loss: Any, iteration: int, train: bool, **kwargs: Any) -> None:
        if train and iteration % self.loss_iters == 0:
            self.tbwriter.add_scalar("metrics/train_loss", float(last_loss), iteration)
        if train and iteration % self.hist_iters == 0:
            for name, parameter in self.learn._module.named_parameters():
                self.tbwriter.add_histogram(f"model_weights/{name}", parameter, iteration)

    def on_epoch_end(self, last_metrics: Any, iteration: int, **kwargs: Any) -> None:
        names = self.learn.recorder.names[2:]
        for name, value in zip(names, last_metrics, strict=False):
            if value is not None:
                self.tbwriter.add_scalar(f"metrics/{name}", float(value), iteration)

    def on_train_end(self, **kwargs: Any) -> None:
        if self.tbwriter is not None:
            self.tbwriter.close()
            self.tbwriter = None


class MLFlowTracker(LearnerCallback):
    """Logs parameters, losses and metrics to MLflow; ``nb_path`` is a file to keep with them."""

    def __init__(
        self, learn: Learner, exp_name: str, params: dict[str, Any], nb_path: str | None = None, uri: str | None = None
    ) -> None:
        super().__init__(learn)
        self.exp_name, self.params, self.nb_path, self.uri = exp_name, params, nb_path, uri

    def on_train_begin(self, **kwargs: Any) -> None:
        self._mlflow = import_module("mlflow")
        if self.uri is not None:
            self._mlflow.set_tracking_uri(self.uri)
        self._mlflow.set_experiment(self.exp_name)
        self.run = self._mlflow.start_run()
        self._mlflow.log_params(self.params)

    def on_epoch_end(self, epoch: int, smooth_loss: Any, last_metrics: Any, **kwargs: Any) -> None:
        names = self.learn.recorder.names[1:]
        for name, value in zip(names, [smooth_loss, *last_metrics], strict=False):
            if value is not None:
                self._mlflow.log_metric(name, float(value), step=epoch)

    def on_train_end(self, **kwargs: Any) -> None:
        if self.nb_path is not None:
            self._mlflow.log_artifact(self.nb_path)
        self._mlflow.end_run()
