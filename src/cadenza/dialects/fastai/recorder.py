"""Callbacks that belong to a Learner, and the one that keeps its losses and metrics."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cadenza.callbacks.showing.figures import new_figure
from cadenza.dialects.fastai.callback import Callback
from cadenza.dialects.fastai.core import camel2snake
from cadenza.dialects.fastai.torch_core import to_cpu

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner


__all__ = ["LearnerCallback", "RecordOnCPU", "Recorder"]


class LearnerCallback(Callback):
    """A callback that knows its Learner as ``self.learn``. What it does not have itself it takes from there, and the
    Learner has it under its name: ``learn.early_stopping_callback``."""

    __dialect_base__ = True

    def __init__(self, learn: Learner) -> None:
        vars(self)["_learn"] = weakref.ref(learn)
        self.exclude: list[str] = ["_learn", "_section", "exclude", "not_min"]  # type: ignore[misc]
        self.not_min: list[str] = []  # type: ignore[misc]
        vars(learn)[self.cb_name] = self

    @property
    def learn(self) -> Any:
        found: Learner | None = vars(self)["_learn"]()
        if found is None:
            raise ReferenceError(f"fastai: the Learner of {type(self).__name__} is gone")
        return found

    @learn.setter
    def learn(self, value: Any) -> None:
        vars(self)["_learn"] = weakref.ref(value)

    @property
    def cb_name(self) -> str:
        return camel2snake(type(self).__name__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_learn" not in vars(self) or name in ("model", "optimizer", "_section"):
            raise AttributeError(f"fastai: {type(self).__name__} has no attribute {name!r}", name=name)
        return getattr(self.learn, name)


class RecordOnCPU(Callback):
    """Keeps the last input and target in main memory, as ``input`` and ``target``."""

    def on_batch_begin(self, last_input: Any, last_target: Any, **kwargs: Any) -> None:
        self.input, self.target = to_cpu(last_input), to_cpu(last_target)


class Recorder(LearnerCallback):
    """Keeps learning rates, momenta and smoothed losses of each training batch, and what validation measured in each
    epoch; writes a table of the epochs unless ``silent``."""

    _order = -10

    def __init__(self, learn: Learner, add_time: bool = True, silent: bool = False) -> None:
        super().__init__(learn)
        self.add_time, self.silent = add_time, silent
        self.no_val = False

    def on_train_begin(self, pbar: Any, metrics_names: list[str], **kwargs: Any) -> None:
        self.pbar, self.start_epoch = pbar, time.time()
        self.metrics_names = [*metrics_names, *vars(self).pop("_added_met_names", ())]
        losses = ["train_loss"] if self.no_val else ["train_loss", "valid_loss"]
        self.names = ["epoch", *losses, *self.metrics_names, *(["time"] if self.add_time else [])]
        self.lrs: list[float] = []
        self.moms: list[float | None] = []
        self.losses: list[Any] = []
        self.val_losses: list[float | None] = []
        self.metrics: list[list[Any]] = []
        self.nb_batches: list[int] = []

    def on_epoch_begin(self, **kwargs: Any) -> None:
        self.start_epoch = time.time()

    def on_batch_begin(self, train: bool, **kwargs: Any) -> None:
        if train:
            self.lrs.append(self.optimizer.lr)
            self.moms.append(self.optimizer.mom)

    def on_backward_begin(self, smooth_loss: Tensor, **kwargs: Any) -> None:
        self.losses.append(smooth_loss)

    def on_epoch_end(
        self, epoch: int, num_batch: int, smooth_loss: Any = None, last_metrics: Any = None, **kwargs: Any
    ) -> None:
        self.nb_batches.append(num_batch)
        values = [to_cpu(value) for value in last_metrics]  # who shows numbers waits
        self.val_losses.append(values[0])
        if len(values) > 1:
            self.metrics.append([value for value in values[1:] if value is not None])
        for name, value in zip(self.metrics_names, values[1:], strict=False):
            if value is not None:
                self._section.run.log(f"val/{name}", float(value))
        if not self.silent:
            self.format_stats([epoch, smooth_loss, *values])

    def add_metric_names(self, names: list[str]) -> None:
        """Names of columns that a callback adds to ``last_metrics``. It calls this in its ``on_train_begin``, and its
        ``_order`` is below -10, that of the recorder."""
        self._added_met_names = [*vars(self).get("_added_met_names", ()), *names]

    def format_stats(self, stats: list[Any]) -> None:
        """Writes one line of the table."""
        if len(self.nb_batches) == 1:
            self.pbar.write(self.names, table=True)
        words = ["#na#" if one is None else str(one) if isinstance(one, int) else f"{float(one):.6f}" for one in stats]
        if self.add_time:
            words.append(format_time(time.time() - self.start_epoch))
        self.pbar.write(words, table=True)

    # Pictures ---------------------------------------------------------------------------------------------------------

    def plot_lr(self, show_moms: bool = False, **_: Any) -> Any:
        """The learning rate of each batch."""
        lines = {"learning rate": self.lrs} | ({"momentum": self.moms} if show_moms else {})
        return _figure("batches processed", lines)

    def plot_losses(self, skip_start: int = 0, skip_end: int = 0, **_: Any) -> Any:
        """The smoothed loss of each batch, and the validation loss of each epoch."""
        losses = [float(loss) for loss in self.losses][skip_start : len(self.losses) - skip_end or None]
        ends = [sum(self.nb_batches[: index + 1]) for index in range(len(self.nb_batches))]
        measured = [(end, loss) for end, loss in zip(ends, self.val_losses, strict=False) if loss is not None]
        pairs = {"validation": ([end for end, _ in measured], [loss for _, loss in measured])}
        return _figure("batches processed", {"train": losses}, pairs)

    def plot_metrics(self, **_: Any) -> Any:
        """Each metric over the epochs."""
        columns = list(zip(*self.metrics, strict=False))
        return _figure("epoch", dict(zip(self.metrics_names, columns, strict=False)))

    def plot(self, skip_start: int = 10, skip_end: int = 5, **_: Any) -> Any:
        """The losses over the learning rates, after ``lr_find``."""
        stop = len(self.lrs) - skip_end or None
        losses = [float(loss) for loss in self.losses][skip_start:stop]
        figure = _figure("learning rate", {}, {"loss": (self.lrs[skip_start:stop], losses)})
        figure.axes[0].set_xscale("log")
        return figure


def format_time(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def _figure(across: str, lines: dict[str, Any], pairs: dict[str, Any] | None = None) -> Any:
    figure = new_figure(6.4, 4.8)
    axes = figure.subplots()
    for name, values in lines.items():
        axes.plot(values, label=name)
    for name, (xs, ys) in (pairs or {}).items():
        axes.plot(xs[: len(ys)], ys, label=name)
    axes.set(xlabel=across)
    if axes.lines:
        axes.legend()
    return figure
