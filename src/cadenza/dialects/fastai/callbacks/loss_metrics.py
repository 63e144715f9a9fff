"""Parts of a loss as metrics."""

from __future__ import annotations

from typing import Any

from cadenza.dialects.fastai.learner_callback import LearnerCallback
from cadenza.dialects.fastai.torch_core import add_metrics

__all__ = ["LossMetrics"]


class LossMetrics(LearnerCallback):
    """Means over validation of what the loss keeps in ``loss_func.metrics``, a dict by name."""

    _order = -20

    def on_train_begin(self, **kwargs: Any) -> None:
        metrics = getattr(self.learn.loss_func, "metrics", None)
        if not metrics:
            raise ValueError("fastai: LossMetrics needs a loss with a dict `metrics` of at least one value")
        self.names = list(metrics)
        self.learn.recorder.add_metric_names(self.names)

    def on_epoch_begin(self, **kwargs: Any) -> None:
        self.totals: dict[str, Any] = dict.fromkeys(self.names, 0.0)
        self.count = 0

    def on_batch_end(self, last_target: Any, train: bool, **kwargs: Any) -> None:
        if not train:
            size = len(last_target)
            for name, value in self.learn.loss_func.metrics.items():
                self.totals[name] = self.totals[name] + value.detach() * size
            self.count += size

    def on_epoch_end(self, last_metrics: Any, **kwargs: Any) -> Any:
        if not self.count:
            return None
        return add_metrics(last_metrics, [self.totals[name] / self.count for name in self.names])
