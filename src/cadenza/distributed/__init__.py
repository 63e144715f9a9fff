"""Many processes: who takes part, how they agree, how the model is spread over them, and how they are started."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cadenza.distributed.agreement.collectives import LonelyCollective, main_only
from cadenza.distributed.failures.rank_errors import RankFailed
from cadenza.distributed.launchers import launch
from cadenza.distributed.strategies.choice import choose
from cadenza.distributed.strategies.strategy import Strategy
from cadenza.distributed.world import World

if TYPE_CHECKING:
    from cadenza.distributed.launchers.spark_data import ParquetData, spark_data
    from cadenza.distributed.strategies.ddp import DDP
    from cadenza.distributed.strategies.fsdp import FSDP

__all__ = [
    "DDP",
    "FSDP",
    "LonelyCollective",
    "ParquetData",
    "RankFailed",
    "Strategy",
    "World",
    "choose",
    "launch",
    "main_only",
    "spark_data",
]
_LATER = {
    "DDP": "cadenza.distributed.strategies.ddp",
    "FSDP": "cadenza.distributed.strategies.fsdp",
    "ParquetData": "cadenza.distributed.launchers.spark_data",
    "spark_data": "cadenza.distributed.launchers.spark_data",
}


def __getattr__(name: str) -> Any:
    """The strategies and what reads files are loaded when they are used: importing must stay quick."""
    if name not in _LATER:
        raise AttributeError(f"cadenza.distributed has no {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value
