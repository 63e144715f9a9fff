"""Optimizers from training parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cadenza.dialects.supergradients.building import located
from cadenza.dialects.supergradients.parameters import TrainingParams
from cadenza.dialects.supergradients.registry import find, register_optimizer

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
    prefixes = [name for name in lr if name != "default"] if isinstance(lr, Mapping) else []
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
            "lr": float(lr[owner]) if isinstance(lr, Mapping) and owner in lr else rate_of(lr),
            **({"weight_decay": 0.0 if plain else decay} if no_decay else {}),
        }
        for (owner, plain), parameters in groups.items()
        if parameters
    ]
