"""Callbacks that follow a metric of the epochs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from cadenza.dialects.fastai.callback import Callback
from cadenza.dialects.fastai.learner_callback import LearnerCallback
from cadenza.dialects.table import nearest

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = [
    "EarlyStoppingCallback",
    "ReduceLROnPlateauCallback",
    "SaveModelCallback",
    "TerminateOnNaNCallback",
    "TrackEpochCallback",
    "TrackerCallback",
]


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
        if mode not in ("auto", "min", "max"):
            raise ValueError(f'fastai: mode is "auto", "min" or "max", not {mode!r}')
        self.monitor, self.mode = monitor, mode
        less = mode == "min" or (mode == "auto" and ("loss" in monitor or "error" in monitor))
        self.sign = -1 if less else 1
        self.best = -self.sign * math.inf

    def on_train_begin(self, **kwargs: Any) -> Any:
        self.best = -self.sign * math.inf

    def get_monitor_value(self) -> float | None:
        """The value of this epoch; None if there was no validation."""
        recorder = self.learn.recorder
        if self.monitor in ("train_loss", "trn_loss"):
            return float(recorder.losses[-1])
        if not recorder.val_losses or len(recorder.val_losses) < len(recorder.nb_batches):
            return None
        names = [*recorder.metrics_names, *recorder._added]
        values = dict(zip(names, recorder.metrics[-1], strict=False)) | {"valid_loss": recorder.val_losses[-1]}
        if self.monitor not in values:
            raise KeyError(f"fastai: {self.monitor!r} is not measured; nearest: {nearest(self.monitor, values)!r}")
        return values[self.monitor]

    def better(self, value: float, margin: float = 0.0) -> bool:
        return self.sign * value - margin > self.sign * self.best


class EarlyStoppingCallback(TrackerCallback):
    """Stops when ``monitor`` did not improve by more than ``min_delta`` for more than ``patience`` epochs in a row."""

    def __init__(
        self, learn: Learner, monitor: str = "valid_loss", mode: str = "auto", min_delta: float = 0, patience: int = 0
    ) -> None:
        super().__init__(learn, monitor, mode)
        self.min_delta, self.patience, self.wait = abs(min_delta), patience, 0

    def on_train_begin(self, **kwargs: Any) -> None:
        self.wait = 0
        super().on_train_begin(**kwargs)

    def on_epoch_end(self, epoch: int, **kwargs: Any) -> Any:
        value = self.get_monitor_value()
        if value is None:
            return None
        if self.better(value, self.min_delta):
            self.best, self.wait = value, 0
            return None
        self.wait += 1
        return {"stop_training": True} if self.wait > self.patience else None


class SaveModelCallback(TrackerCallback):
    """Saves the best model, and loads it at the end; with ``every="epoch"`` each one, as ``<name>_<epoch>``."""

    def __init__(
        self,
        learn: Learner,
        monitor: str = "valid_loss",
        mode: str = "auto",
        every: str = "improvement",
        name: str = "bestmodel",
    ) -> None:
        super().__init__(learn, monitor, mode)
        if every not in ("improvement", "epoch"):
            raise ValueError(f'fastai: every is "improvement" or "epoch", not {every!r}')
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


class ReduceLROnPlateauCallback(TrackerCallback):
    """Multiplies the learning rate by ``factor`` when ``monitor`` did not improve for more than ``patience`` epochs."""

    def __init__(
        self,
        learn: Learner,
        monitor: str = "valid_loss",
        mode: str = "auto",
        patience: int = 0,
        factor: float = 0.2,
        min_delta: float = 0,
        min_lr: float = 0.001,
    ) -> None:
        super().__init__(learn, monitor, mode)
        self.patience, self.factor, self.min_delta, self.min_lr, self.wait = patience, factor, min_delta, min_lr, 0

    def on_train_begin(self, **kwargs: Any) -> None:
        self.wait = 0
        super().on_train_begin(**kwargs)

    def on_epoch_end(self, epoch: int, **kwargs: Any) -> None:
        value = self.get_monitor_value()
        if value is None:
            return
        if self.better(value, self.min_delta):
            self.best, self.wait = value, 0
            return
        self.wait += 1
        if self.wait > self.patience:
            optimizer, self.wait = self.learn.opt, 0
            optimizer.lr = [max(group["lr"] * self.factor, self.min_lr) for group in optimizer.param_groups]


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
