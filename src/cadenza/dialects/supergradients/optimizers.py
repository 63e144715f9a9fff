"""Optimizers, and the callbacks that set the learning rate, from training parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from cadenza.dialects.supergradients.parameters import TrainingParams
from cadenza.dialects.supergradients.registry import find, located, register_optimizer
from cadenza.dialects.supergradients.schedules import LRSchedulerCallback
from cadenza.dialects.supergradients.warmups import LinearBatchLRWarmup, LinearEpochLRWarmup

DEFAULTS: dict[str, dict[str, Any]] = {
    "SGD": {"weight_decay": 1e-4, "momentum": 0.9},
    "Adam": {"weight_decay": 1e-4},
    "RMSprop": {"weight_decay": 1e-4, "momentum": 0.9},
}
for _name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam"):
    register_optimizer(_name)(getattr(torch.optim, _name))


def make_optimizer(net: nn.Module, params: TrainingParams) -> Optimizer:
    """An optimizer from a name, a class, ``{name: arguments}`` or an object, with the original's defaults. What was
    chosen can be read from ``params``: arguments, and the rate of an object."""
    said, arguments, lr = params.optimizer, params.optimizer_params or {}, params.initial_lr
    if isinstance(said, Optimizer):
        params["initial_lr"] = said.param_groups[0]["lr"]
        return said
    if isinstance(said, Mapping):
        name, more = next(iter(said.items()))
        said, arguments = name, {**dict(more or {}), **arguments}
    kind = said if isinstance(said, type) else (located(said) if "." in said else find("optimizer", said))
    params["optimizer_params"] = options = {**DEFAULTS.get(kind.__name__, {}), **arguments}
    groups = grouped(net, float(options.get("weight_decay", 0.0)), lr, params.zero_weight_decay_on_bias_and_bn)
    made: Optimizer = kind(groups, lr=rate_of(lr), **options)
    return made


def rate_of(lr: Any) -> float:
    """One rate for the optimizer itself: the given one, or the one under "default", or the first of several."""
    if isinstance(lr, Mapping):
        return float(lr.get("default", next(iter(lr.values()))))
    return float(lr)


def grouped(net: nn.Module, decay: float, lr: Any, no_decay: bool) -> list[dict[str, Any]]:
    """Parameter groups: one for each name in ``lr`` that begins the names of parameters, and "default" for the rest;
    biases and normalisation without weight decay if that is wanted."""
    rates = lr if isinstance(lr, Mapping) else {}
    prefixes = [name for name in rates if name != "default"]
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {
        (owner, plain): [] for owner in (*prefixes, "default") for plain in (True, False)
    }
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            owner = next((prefix for prefix in prefixes if name.startswith(f"{prefix}.")), "default")
            groups[owner, no_decay and parameter.dim() <= 1].append(parameter)
    return [
        {
            "params": parameters,
            "name": owner,
            "lr": float(rates[owner]) if owner in rates else rate_of(lr),
            **({"weight_decay": 0.0 if plain else decay} if no_decay else {}),
        }
        for (owner, plain), parameters in groups.items()
        if parameters
    ]


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
