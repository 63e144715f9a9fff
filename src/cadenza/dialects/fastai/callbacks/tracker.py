"""Callbacks that follow a metric of the epochs."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

from cadenza.dialects.fastai.callback import Callback
from cadenza.dialects.fastai.learner_callback import LearnerCallback
from cadenza.dialects.numeric import numpy as np
from cadenza.dialects.table import nearest
from cadenza.foundation.arguments import check

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = [
    "EarlyStoppingCallback", "ReduceLROnPlateauCallback", "SaveModelCallback", "TerminateOnNaNCallback",
    "TrackEpochCallback", "TrackerCallback",
]  # fmt: skip


class TerminateOnNaNCallback(Callback):
    """Ends the training at a batch whose loss is NaN, without validation. It waits for the device in each batch."""

    def on_batch_end(self, last_loss: Any, epoch: int, num_batch: int, **kwargs: Any) -> Any:
        if math.isnan(float(last_loss)):
            return {"stop_epoch": True, "stop_training": True, "skip_validate": True}
        return None


class TrackerCallback(LearnerCallback):
    """Follows ``monitor``: "valid_loss", "train_loss" or the name of a metric. With mode "auto", less is better if
    "loss" or "error" is in the name."""

    def __init__(self, learn: Learner, monitor: str = "valid_loss", mode: str = "auto") -> None:
        super().__init__(learn)
        check(mode in ("auto", "min", "max"), 'fastai: mode is "auto", "min" or "max"', mode)
        self.monitor, self.mode = monitor, mode
        less = mode == "min" or (mode == "auto" and ("loss" in monitor or "error" in monitor))
        self.operator: Any = np.less if less else np.greater
        self.best = math.inf if less else -math.inf

    def on_train_begin(self, **kwargs: Any) -> Any:
        self.best = math.inf if self.operator is np.less else -math.inf

    def get_monitor_value(self) -> float | None:
        """The value of this epoch; None if there was no validation, or with a warning if nothing of that name was
        measured."""
        recorder = self.learn.recorder
        if self.monitor in ("train_loss", "trn_loss"):
            return float(recorder.losses[-1])
        if not recorder.val_losses or recorder.val_losses[-1] is None:
            return None
        measured = recorder.metrics[-1] if recorder.metrics else []
        values = dict(zip(recorder.metrics_names, measured, strict=False)) | {"valid_loss": recorder.val_losses[-1]}
        if self.monitor not in values:
            near = nearest(self.monitor, values)
            warnings.warn(f"fastai: {self.monitor!r} is not measured; nearest: {near!r}", stacklevel=2)
            return None
        return float(values[self.monitor])

    def better(self, value: float, margin: float = 0.0) -> bool:
        return bool(self.operator(value + margin if self.operator is np.less else value - margin, self.best))


class _Patient(TrackerCallback):
    """Counts the epochs in a row in which ``monitor`` did not improve by more than ``min_delta``."""

    def __init__(
        self, learn: Learner, monitor: str = "valid_loss", mode: str = "auto", min_delta: float = 0, patience: int = 0
    ) -> None:
        super().__init__(learn, monitor, mode)
        self.min_delta, self.patience, self.wait = abs(min_delta), patience, 0

    def on_train_begin(self, **kwargs: Any) -> None:
        self.wait = 0
        super().on_train_begin(**kwargs)

    def waited(self) -> bool:
        """Counts this epoch; True if there were more than ``patience`` of them."""
        value = self.get_monitor_value()
        if value is not None and self.better(value, self.min_delta):
            self.best, self.wait = value, 0
        elif value is not None:
            self.wait += 1
        return value is not None and self.wait > self.patience


class EarlyStoppingCallback(_Patient):
    """Stops when ``monitor`` did not improve by more than ``min_delta`` for more than ``patience`` epochs in a row."""

    def on_epoch_end(self, epoch: int, **kwargs: Any) -> Any:
        return {"stop_training": True} if self.waited() else None


class SaveModelCallback(TrackerCallback):
    """Saves the best model, and loads it at the end; with ``every="epoch"`` each one, as ``<name>_<epoch>``."""

    def __init__(
        self, learn: Learner, monitor: str = "valid_loss", mode: str = "auto", every: str = "improvement",
        name: str = "bestmodel",
    ) -> None:  # fmt: skip
        super().__init__(learn, monitor, mode)
        check(every in ("improvement", "epoch"), 'fastai: every is "improvement" or "epoch"', every)
        self.every, self.name = every, name
        self.saved = False

    def jump_to_epoch(self, epoch: int) -> None:
        self.learn.load(f"{self.name}_{epoch - 1}")

    def on_epoch_end(self, epoch: int, **kwargs: Any) -> None:
        if self.every == "epoch":
            self.learn.save(f"{self.name}_{epoch}")
            return
        value = self.get_monitor_value()
        if value is not None and self.better(value):
            self.best, self.saved = value, True
            self.learn.save(self.name)

    def on_train_end(self, **kwargs: Any) -> None:
        if self.every == "improvement" and self.saved:
            self.learn.load(self.name)
            self.saved = False


class ReduceLROnPlateauCallback(_Patient):
    """Multiplies the learning rate by ``factor`` when ``monitor`` did not improve for more than ``patience`` epochs."""

    def __init__(
        self, learn: Learner, monitor: str = "valid_loss", mode: str = "auto", patience: int = 0, factor: float = 0.2,
        min_delta: float = 0, min_lr: float = 0.001,
    ) -> None:  # fmt: skip
        super().__init__(learn, monitor, mode, min_delta, patience)
        self.factor, self.min_lr = factor, min_lr

    def on_epoch_end(self, epoch: int, **kwargs: Any) -> None:
        if self.waited():
            optimizer, self.wait = self.learn.opt, 0
            optimizer.lr = [max(lr * self.factor, self.min_lr) for lr in optimizer.read_val("lr")]


class TrackEpochCallback(LearnerCallback):
    """Writes the number of the next epoch to a file, and begins there if a fit was interrupted; ``epoch_offset`` says
    where to begin instead. The file is removed when the training ends in order."""

    _order = -20

    def __init__(self, learn: Learner, name: str = "epoch", epoch_offset: int | None = None) -> None:
        super().__init__(learn)
        self.file = learn.path / learn.model_dir / name
        self.epoch_offset = epoch_offset

    def on_train_begin(self, **kwargs: Any) -> Any:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if self.epoch_offset is not None:
            self.start_epoch = self.epoch_offset
        else:
            self.start_epoch = int(self.file.read_text()) if self.file.exists() else 0
        return {"epoch": self.start_epoch}

    def on_epoch_end(self, epoch: int, **kwargs: Any) -> None:
        self.file.write_text(str(epoch + 1))

    def on_train_end(self, exception: Any, **kwargs: Any) -> None:
        if not exception and self.file.exists():
            self.file.unlink()
