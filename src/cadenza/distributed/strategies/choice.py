"""Choose the strategy that a trainer was asked for."""

from __future__ import annotations

from cadenza.distributed.strategies.strategy import Strategy
from cadenza.distributed.world import World
from cadenza.foundation.suggest import did_you_mean

NAMES = ("auto", "single", "ddp", "fsdp")


def choose(strategy: str | Strategy) -> Strategy:
    """The strategy of this name, or the object itself. ``"auto"`` is DDP among many processes.

    >>> choose("single"), choose("auto").world().world_size
    (Strategy(), 1)
    """
    if isinstance(strategy, Strategy):
        return strategy
    if strategy not in NAMES:
        hint = did_you_mean(str(strategy), NAMES)
        raise ValueError(
            f"strategy is one of {', '.join(NAMES)}, or an object such as DDP(...), not {strategy!r}{hint}"
        )
    if strategy == "single" or World.detect().alone:
        return Strategy()
    if strategy == "fsdp":
        from cadenza.distributed.strategies.fsdp import FSDP  # it loads much that others do not need

        return FSDP()
    from cadenza.distributed.strategies.ddp import DDP

    return DDP()
