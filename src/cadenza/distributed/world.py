"""Which process this is among those that train together."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from cadenza.distributed.failures.restart_store import fresh_store, has_old_store


@dataclass(frozen=True)
class World:
    """One process among ``world_size``: its number among all, and among those on its machine.

    ``World.detect()`` asks torch.distributed, then the variables of torchrun, then those of SLURM; without any of them
    it is a world of one. ``join`` meets the others.

    >>> World(rank=1, world_size=4).is_main, World().alone
    (False, True)
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    source: str = "single"
    address: str | None = None
    port: int | None = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.world_size == 1

    @property
    def backend(self) -> str | None:
        """What the processes talk through, such as "gloo"; None before they have met."""
        return str(dist.get_backend()) if _has_met() else None

    @classmethod
    def detect(cls, environment: Mapping[str, str] | None = None) -> World:
        """This process as torch.distributed knows it, or else as torchrun or SLURM describe it.

        >>> World.detect({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
        World(rank=3, local_rank=1, world_size=4, local_world_size=1, source='torchrun', address='a', port=1)
        """
        given = os.environ if environment is None else environment
        if environment is None and _has_met():
            rank, size = dist.get_rank(), dist.get_world_size()
            local, here = int(given.get("LOCAL_RANK", rank)), int(given.get("LOCAL_WORLD_SIZE", size))
            port = int(given["MASTER_PORT"]) if "MASTER_PORT" in given else None
            return cls(rank, local, size, here, "torch.distributed", given.get("MASTER_ADDR"), port)
        return _from_torchrun(given) or _from_slurm(given) or cls()

    def join(self, device: torch.device | None = None, timeout: float = 1800.0) -> None:
        """Meets the other processes, if they have not met yet: gloo for the CPU, and nccl for CUDA devices.

        ``timeout`` is in seconds, for the meeting and for every collective after it.
        """
        if self.alone or _has_met():
            return
        if device is not None and device.type == "cuda":
            torch.cuda.set_device(device)
            backend: str | None = "cpu:gloo,cuda:nccl"
        else:
            backend = "gloo"
        how: dict[str, Any] = {
            "init_method": f"tcp://{self.address}:{self.port}" if self.source == "slurm" else "env://"
        }
        if self.source == "torchrun" and has_old_store(os.environ):
            how = {"store": fresh_store(str(self.address), self.port or 0, self.rank, self.world_size, timeout)}
        dist.init_process_group(
            backend, rank=self.rank, world_size=self.world_size, timeout=timedelta(seconds=timeout), **how
        )

    def device(self, kind: str) -> torch.device:
        """The device of this process: one of its machine's own for each of them, the CPU for all."""
        if self.alone or kind in ("cpu", "mps"):
            return torch.device(kind)
        there = torch.accelerator.device_count()
        return torch.device(kind, self.local_rank % there if there else 0)


def _has_met() -> bool:
    return dist.is_available() and dist.is_initialized()


def _from_torchrun(given: Mapping[str, str]) -> World | None:
    """torchrun, Ray Train and Spark's distributor all set these."""
    needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(name in given for name in needed):
        return None
    return World(
        int(given["RANK"]),
        int(given.get("LOCAL_RANK", given["RANK"])),
        int(given["WORLD_SIZE"]),
        int(given.get("LOCAL_WORLD_SIZE", 1)),
        "torchrun",
        given["MASTER_ADDR"],
        int(given["MASTER_PORT"]),
    )


def _from_slurm(given: Mapping[str, str]) -> World | None:
    """A task that srun started; a shell inside an allocation is none, since it has no step of its own."""
    if "SLURM_PROCID" not in given or int(given.get("SLURM_NTASKS", 1)) < 2 or "SLURM_STEP_ID" not in given:
        return None
    nodes = given.get("SLURM_STEP_NODELIST") or given.get("SLURM_JOB_NODELIST", "localhost")
    here = re.match(r"\d+", given.get("SLURM_STEP_TASKS_PER_NODE", given.get("SLURM_TASKS_PER_NODE", "1")))
    return World(
        int(given["SLURM_PROCID"]),
        int(given.get("SLURM_LOCALID", 0)),
        int(given["SLURM_NTASKS"]),
        int(here[0]) if here else 1,
        "slurm",
        given.get("MASTER_ADDR", first_host(nodes)),
        int(given.get("MASTER_PORT", 15000 + int(given.get("SLURM_JOB_ID", 0)) % 20000)),
    )


def first_host(nodes: str) -> str:
    """The first of the machines in SLURM's way to write them.

    >>> first_host("gpu[003-007,12],login1"), first_host("one,two")
    ('gpu003', 'one')
    """
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes
