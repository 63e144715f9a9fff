"""Many processes: who takes part, how they agree, how the model is spread over them, and how they are started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cadenza.distributed.choice import choose
from cadenza.distributed.failure import RankFailed
from cadenza.distributed.guard import LonelyCollective, main_only
from cadenza.distributed.launchers import launch
from cadenza.distributed.strategy import Strategy
from cadenza.distributed.world import World

if TYPE_CHECKING:
    from cadenza.distributed.ddp import DDP
    from cadenza.distributed.fsdp import FSDP

__all__ = ["DDP", "FSDP", "LonelyCollective", "RankFailed", "Strategy", "World", "choose", "launch", "main_only"]


def __getattr__(name: str) -> Any:
    """The strategies are loaded when they are used: importing must stay quick."""
    if name == "DDP":
        from cadenza.distributed.ddp import DDP

        return DDP
    if name == "FSDP":
        from cadenza.distributed.fsdp import FSDP

        return FSDP
    raise AttributeError(f"cadenza.distributed has no {name!r}")
