"""What the main process found out, known to all of them."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed

Known = TypeVar("Known")


def from_main(value: Known, device: torch.device) -> Known:
    """The value of the main process; ``value`` itself where there is only one. All processes call it."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return value
    if torch.distributed.get_world_size() == 1:
        return value
    on = device if torch.distributed.get_backend() == "nccl" else torch.device("cpu")
    box: list[Known] = [value]
    torch.distributed.broadcast_object_list(box, src=0, device=on)
    return box[0]
