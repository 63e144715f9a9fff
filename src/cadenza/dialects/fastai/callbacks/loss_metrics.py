"""Columns of the table beside metrics: parts of a loss, and memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import torch

from cadenza.dialects.fastai.recorder import LearnerCallback
from cadenza.dialects.fastai.torch_core import add_metrics

__all__ = ["CpuPeakMemMetric", "LossMetrics", "PeakMemMetric"]


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


_MIB = 1024 * 1024


class CpuPeakMemMetric(LearnerCallback):
    """What Python itself took in main memory in an epoch, and its peak, in MiB."""

    _order = -20
    columns = ("cpu used", "cpu peak")

    def on_train_begin(self, **kwargs: Any) -> None:
        self.learn.recorder.add_metric_names(list(self.columns))
        self._ours = not tracemalloc.is_tracing()
        if self._ours:
            tracemalloc.start()

    def on_epoch_begin(self, **kwargs: Any) -> None:
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            self._device_before = torch.cuda.memory_allocated()

    def measured(self) -> list[float]:
        now, peak = tracemalloc.get_traced_memory()
        return [(now - self._before) / _MIB, max(0, peak - now) / _MIB]

    def on_epoch_end(self, last_metrics: Any, **kwargs: Any) -> Any:
        return add_metrics(last_metrics, self.measured())

    def on_train_end(self, **kwargs: Any) -> None:
        if self._ours:
            tracemalloc.stop()


class PeakMemMetric(CpuPeakMemMetric):
    """The same, and the memory of the CUDA device; zeros without one."""

    columns = ("cpu used", "cpu peak", "gpu used", "gpu peak")  # type: ignore[assignment]

    def measured(self) -> list[float]:
        if not torch.cuda.is_available():
            return [*super().measured(), 0.0, 0.0]
        now = torch.cuda.memory_allocated()
        peak = torch.cuda.max_memory_allocated()
        return [*super().measured(), (now - self._device_before) / _MIB, (peak - now) / _MIB]
