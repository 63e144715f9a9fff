"""Processes and set-up: what scripts call before they train."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable
from enum import Enum, unique
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "MultiGPUMode", "broadcast_from_master", "execute_and_distribute_from_master", "find_free_port", "get_local_rank",
    "get_world_size", "init_trainer", "is_ddp_subprocess", "is_distributed", "is_main_process",
    "maybe_all_gather_as_list", "maybe_all_reduce_tensor_average", "multi_process_safe",
    "setup_device", "wait_for_the_master",
]  # fmt: skip


@unique
class MultiGPUMode(Enum):
    """How several devices are used. Only ``DATA_PARALLEL`` is not carried."""

    OFF = "Off"
    DATA_PARALLEL = "DP"
    DISTRIBUTED_DATA_PARALLEL = "DDP"
    AUTO = "AUTO"


_chosen: dict[str, Any] = {"device": "auto", "strategy": "auto"}


def init_trainer() -> None:
    """Was needed to set up processes; here they are set up when a training begins, so nothing is left to do."""


def setup_device(multi_gpu: str | None = None, num_gpus: int | None = None, device: str | None = None) -> None:
    """Says on which device the next trainings run. Processes are started from outside, one for each device."""
    mode = "OFF" if multi_gpu is None else str(getattr(multi_gpu, "value", multi_gpu)).upper()
    if mode in ("DP", "DATA_PARALLEL"):
        raise ValueError("supergradients: multi_gpu='DP' is not carried: start a process for each device, with 'DDP'")
    ddp = mode in ("DDP", "DISTRIBUTED_DATA_PARALLEL")
    if mode not in ("OFF", "AUTO", "NONE") and not ddp:
        raise ValueError(f"supergradients: multi_gpu is 'Off', 'DDP' or 'AUTO', not {multi_gpu!r}")
    if num_gpus is not None and num_gpus > 1 and int(os.environ.get("WORLD_SIZE", "1")) != num_gpus:
        raise ValueError(
            f"supergradients: num_gpus={num_gpus}, but this is one process: start the script with "
            f"`torchrun --nproc-per-node {num_gpus}` or `cadenza launch`"
        )
    _chosen.update(device=device or "auto", strategy="ddp" if ddp else "auto")


def chosen() -> dict[str, Any]:
    """The device and the strategy that ``setup_device`` chose."""
    return dict(_chosen)


def is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def synchronised(model: nn.Module, world_size: int, device: str) -> nn.Module:
    """``model`` with batch statistics over all processes, where there are several (``sync_bn``)."""
    if world_size == 1:
        return model
    if device == "cpu":
        raise ValueError("supergradients: sync_bn needs GPUs: torch.nn.SyncBatchNorm does not run on CPUs")
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    return converted


def get_local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0")) if is_distributed() else 0


def get_world_size() -> int:
    return torch.distributed.get_world_size() if is_distributed() else 1


def is_ddp_subprocess() -> bool:
    """Whether this is one of several processes, and not the first."""
    return get_local_rank() > 0


def find_free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def is_main_process() -> bool:
    """Whether this is the process of rank 0, or the only one."""
    return not is_distributed() or torch.distributed.get_rank() == 0


def multi_process_safe(func: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the method on the first process of each machine, and returns what it returns; elsewhere nothing happens.

    >>> @multi_process_safe
    ... def say(what):
    ...     print(what)
    >>> say("once")
    once
    """

    @functools.wraps(func)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs) if get_local_rank() <= 0 else None

    return guarded


def wait_for_the_master(local_rank: int | None = None) -> None:
    """Waits until all processes are here."""
    if is_distributed():
        torch.distributed.barrier()


def broadcast_from_master(data: Any) -> Any:
    """What the main process has, on all of them."""
    if not is_distributed():
        return data
    box = [data]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


def execute_and_distribute_from_master(func: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a function on the main process and gives all of them its answer."""

    @functools.wraps(func)
    def everywhere(*args: Any, **kwargs: Any) -> Any:
        return broadcast_from_master(func(*args, **kwargs) if is_main_process() else None)

    return everywhere


def maybe_all_reduce_tensor_average(tensor: Tensor) -> Tensor:
    """The mean over all processes; with one, the tensor itself."""
    if not is_distributed():
        return tensor
    total = tensor.detach().clone()
    torch.distributed.all_reduce(total)
    return total / torch.distributed.get_world_size()


def maybe_all_gather_as_list(tensor: Any) -> list[Any]:
    """What all processes have, as a list; with one, a list of one."""
    if not is_distributed():
        return [tensor]
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, tensor)
    return found
