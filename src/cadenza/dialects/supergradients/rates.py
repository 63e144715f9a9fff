"""The callbacks that set the learning rate, from training parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from cadenza.dialects.supergradients.parameters import TrainingParams
from cadenza.dialects.supergradients.registry import find
from cadenza.dialects.supergradients.schedules import LRSchedulerCallback
from cadenza.dialects.supergradients.warmups import LinearBatchLRWarmup, LinearEpochLRWarmup

TORCH = (
    "StepLR", "LambdaLR", "MultiStepLR", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR",
    "ExponentialLR", "ReduceLROnPlateau", "LinearLR",
)  # fmt: skip
ARGUMENTS = (
    "max_epochs", "lr_updates", "lr_decay_factor", "step_lr_update_freq", "cosine_final_lr_ratio",
    "lr_schedule_function",
)  # fmt: skip


def rate_callbacks(params: TrainingParams, optimizer: Optimizer, net: Any, batches: int) -> tuple[list[Any], list[Any]]:
    """The warm-up, and the schedule: each a list of at most one callback."""
    initial = params.initial_lr
    shared = {"initial_lr": initial, "train_loader_len": batches, "net": net, "training_params": params}
    warmup = []
    if params.lr_warmup_epochs:
        warmup = [_named("lr_warmup", params.warmup_mode)(**shared)]
    elif params.lr_warmup_steps:
        mode = _named("lr_warmup", params.warmup_mode)
        warmup = [(LinearBatchLRWarmup if mode is LinearEpochLRWarmup else mode)(**shared)]  # the default is by epochs
    if isinstance(params.lr_mode, Mapping):
        return warmup, [torch_schedule(params.lr_mode, optimizer)]
    schedule = None if params.lr_mode is None else _named("lr_scheduler", params.lr_mode)
    return warmup, [schedule(**shared, **{name: params[name] for name in ARGUMENTS})] if schedule else []


def _named(kind: str, said: Any) -> Any:
    return find(kind, said) if isinstance(said, str) else said


def torch_schedule(mode: Mapping[str, Any], optimizer: Optimizer) -> LRSchedulerCallback:
    """``{name: {arguments, phase, metric_name}}`` as a callback that steps one of torch's schedulers."""
    name, arguments = next(iter(mode.items()))
    if name not in TORCH:
        raise ValueError(f"supergradients: lr_mode names {name!r}; torch's schedulers are {', '.join(TORCH)}")
    options = dict(arguments or {})
    phase, metric = options.pop("phase", "TRAIN_EPOCH_END"), options.pop("metric_name", None)
    if (name == "ReduceLROnPlateau") == (metric is None):
        raise ValueError("supergradients: metric_name goes with ReduceLROnPlateau, and only with it")
    return LRSchedulerCallback(getattr(lr_scheduler, name)(optimizer, **options), phase, metric)
