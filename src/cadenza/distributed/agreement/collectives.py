"""Small messages between all processes. Each call is a collective: all of them must make it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist


def meeting_place(device: torch.device) -> torch.device:
    """Where small numbers are put together: on the CPU if the processes can talk there, which waits for no device."""
    return torch.device("cpu") if "cpu" in str(dist.get_backend_config()) else device


def summed(numbers: Sequence[float], place: torch.device) -> list[float]:
    """The sum over all processes of each number."""
    table = torch.tensor(numbers, dtype=torch.float64).to(place)
    dist.all_reduce(table)
    return [float(number) for number in table.tolist()]


def gathered(mine: Any) -> list[Any]:
    """What every process gave, in the order of ranks."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def from_main(mine: Any) -> Any:
    """What rank 0 gave, on all ranks."""
    box = [mine]
    dist.broadcast_object_list(box, src=0)
    return box[0]
