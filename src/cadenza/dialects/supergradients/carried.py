"""Small functions and classes of the original's helper modules (``training.utils`` and others) that scripts import."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cadenza.dialects.numeric import numpy as np
from cadenza.dialects.supergradients.environment import MultiGPUMode
from cadenza.dialects.supergradients.meters import AverageMeter
from cadenza.dialects.supergradients.upkeep import unpacked
from cadenza.dialects.supergradients.watching import plainly
from cadenza.foundation.torch_private import tree_map

__all__ = [
    "AverageMeter", "HpmStruct", "MonitoredValue", "MultiGPUMode", "check_models_have_same_weights",
    "convert_to_tensor", "get_logger", "get_param", "infer_model_device", "random_seed", "resource_filename",
    "tensor_container_to_device", "unpack_batch_items", "unwrap_model", "update_monitored_value",
    "update_monitored_values_dict",
]  # fmt: skip

get_logger = logging.getLogger
unpack_batch_items = unpacked


class HpmStruct:
    """Arguments as attributes.

    >>> HpmStruct(depth=3).depth
    3
    """

    def __init__(self, **entries: Any) -> None:
        self.override(**entries, schema=None)

    def override(self, **entries: Any) -> None:
        self.__dict__.update(entries)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def get_param(params: Any, name: str, default_val: Any = None) -> Any:
    """The entry or attribute ``name``, whatever its case and separators, or ``default_val``.

    >>> get_param({"My_Name": 4}, "myname"), get_param({"a": 1}, "b", 2)
    (4, 2)
    """
    if isinstance(params, Mapping):
        return next((value for key, value in params.items() if plainly(key) == plainly(name)), default_val)
    return getattr(params, name, default_val)


def convert_to_tensor(array: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    return torch.as_tensor(array).to(device=device, dtype=dtype)


def tensor_container_to_device(obj: Any, device: Any, non_blocking: bool = True, detach: bool = False) -> Any:
    """Tensors in nested dicts, lists and tuples go to ``device``."""

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return (leaf.detach() if detach else leaf).to(device, non_blocking=non_blocking)

    return tree_map(moved, obj)


def unwrap_model(model: nn.Module) -> nn.Module:
    """The model inside of ``DataParallel`` or ``DistributedDataParallel``."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    return unwrap_model(model.module) if isinstance(model, wrappers) else model


def infer_model_device(model: nn.Module) -> torch.device | None:
    return next((one.device for one in model.parameters()), None)


def check_models_have_same_weights(model_1: nn.Module, model_2: nn.Module, skip_bn_stats: bool = False) -> bool:
    one, other = (
        {name: value for name, value in model.state_dict().items() if not (skip_bn_stats and "running_" in name)}
        for model in (model_1, model_2)
    )
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def random_seed(is_ddp: bool, device: Any, seed: int) -> None:
    """Seeds torch, NumPy and Python; processes of one training differ by their rank."""
    own = seed + (torch.distributed.get_rank() if is_ddp else 0)
    torch.manual_seed(own)
    np.random.seed(own)
    random.seed(own)


@dataclass
class MonitoredValue:
    """A value over the epochs: now, before and at its best."""

    name: str
    greater_is_better: bool | None = None
    current: float | None = None
    previous: float | None = None
    best: float | None = None
    change_from_previous: float | None = None
    change_from_best: float | None = None


def update_monitored_value(previous_monitored_value: MonitoredValue, new_value: float) -> MonitoredValue:
    """What is monitored after one more value; the changes are those from what was the previous and the best one."""
    before = previous_monitored_value
    known = [value for value in (before.best, before.current) if value is not None]
    best = (max if before.greater_is_better else min)(known, default=None)
    changes = [None if one is None else new_value - one for one in (before.current, best)]
    return MonitoredValue(before.name, before.greater_is_better, new_value, before.current, best, *changes)


def update_monitored_values_dict(
    monitored_values_dict: dict[str, MonitoredValue], new_values_dict: Mapping[str, float]
) -> dict[str, MonitoredValue]:
    for name, value in new_values_dict.items():
        monitored_values_dict[name] = update_monitored_value(monitored_values_dict[name], value)
    return monitored_values_dict


def resource_filename(package: str, name: str) -> str:
    """The path of a file in a package, as ``pkg_resources`` finds it, which newer environments do not have."""
    from importlib.resources import files

    return str(files(package) / name)
