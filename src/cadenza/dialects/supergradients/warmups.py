"""Learning rates that rise at the beginning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cadenza.dialects.supergradients.callback import PhaseContext
from cadenza.dialects.supergradients.phases import Phase
from cadenza.dialects.supergradients.registry import register_lr_warmup
from cadenza.dialects.supergradients.schedules import LRCallbackBase

__all__ = [
    "BatchStepLinearWarmupLRCallback", "EpochStepWarmupLRCallback", "LinearBatchLRWarmup", "LinearEpochLRWarmup",
]  # fmt: skip


@register_lr_warmup("LinearEpochLRWarmup", "linear_epoch_step")
class LinearEpochLRWarmup(LRCallbackBase):
    """Rises at the beginning of each of the first ``lr_warmup_epochs`` epochs, from ``warmup_initial_lr``."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(Phase.TRAIN_EPOCH_START, **kwargs)
        given = getattr(self.training_params, "warmup_initial_lr", None)
        self.warmup_initial_lr = initial_of(given, self.initial_lr, self.warmup_epochs)

    def is_lr_scheduling_enabled(self, context: PhaseContext) -> bool:
        return 0 < self.warmup_epochs >= int(context.epoch)

    def perform_scheduling(self, context: PhaseContext) -> None:
        for name, lr in self.initial_lr.items():
            first = self.warmup_initial_lr[name]
            self.lr[name] = first + context.epoch * (lr - first) / self.warmup_epochs
        self.update_lr(context.optimizer, context.epoch)


@register_lr_warmup("LinearBatchLRWarmup", "linear_batch_step")
class LinearBatchLRWarmup(LRCallbackBase):
    """Rises with each of the first ``lr_warmup_steps`` batches, at most one epoch, from ``warmup_initial_lr``."""

    def __init__(
        self, warmup_initial_lr: float | Mapping[str, float] | None = None, lr_warmup_steps: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(Phase.TRAIN_EPOCH_START, **{"initial_lr": 0.0, **kwargs})
        params, length = self.training_params, self.train_loader_len
        wanted = lr_warmup_steps or int(getattr(params, "lr_warmup_steps", 0) or 0)
        self.lr_warmup_steps = min(wanted, length) if length else wanted
        given = getattr(params, "warmup_initial_lr", None) if warmup_initial_lr is None else warmup_initial_lr
        self.warmup_initial_lr = initial_of(given, self.initial_lr, self.lr_warmup_steps)

    def __call__(self, context: PhaseContext) -> None:
        """Nothing at its phase: it goes by batches."""

    def on_train_batch_start(self, context: PhaseContext) -> None:
        step = self.train_loader_len * context.epoch + context.batch_idx
        if step >= self.lr_warmup_steps:
            return
        last = max(self.lr_warmup_steps - 1, 1)
        for name, lr in self.initial_lr.items():
            first = self.warmup_initial_lr[name]
            self.lr[name] = first + step * (lr - first) / last
        self.update_lr(context.optimizer, context.epoch, context.batch_idx)


def initial_of(given: Any, initial: Mapping[str, float], length: int) -> dict[str, float]:
    """The rate at which a warm-up begins, by group; if it was not given, the initial one divided by its length + 1."""
    if isinstance(given, Mapping):
        return {name: float(given[name]) for name in initial}
    return {name: lr / (length + 1) if given is None else float(given) for name, lr in initial.items()}


EpochStepWarmupLRCallback = LinearEpochLRWarmup
BatchStepLinearWarmupLRCallback = LinearBatchLRWarmup
