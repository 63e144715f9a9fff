"""How global batches are divided over processes, and put together again: arithmetic without state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Part = TypeVar("Part")


def portion(size: int, rank: int, world_size: int) -> tuple[int, int]:
    """Where the samples of ``rank`` begin and end in a global batch of ``size``: as even as can be, in rank order.

    >>> [portion(8, rank, 4) for rank in range(4)], [portion(2, rank, 4) for rank in range(4)]
    ([(0, 2), (2, 4), (4, 6), (6, 8)], [(0, 1), (1, 2), (2, 2), (2, 2)])
    """
    each, more = divmod(size, world_size)
    begin = rank * each + min(rank, more)
    return begin, begin + each + (rank < more)


def steps_left(samples: int, batch_size: int, world_size: int, drop_last: bool) -> int:
    """How many global batches ``samples`` make.

    >>> steps_left(10, 2, 2, drop_last=False), steps_left(10, 2, 2, drop_last=True)
    (3, 2)
    """
    whole, rest = divmod(samples, batch_size * world_size)
    return whole + bool(rest and not drop_last)


def batches_left(samples: int, batch_size: int, rank: int, world_size: int, drop_last: bool) -> int:
    """How many of the global batches have samples for ``rank``: all, or all but the last.

    >>> [batches_left(9, 2, rank, 4, drop_last=False) for rank in range(4)]
    [2, 1, 1, 1]
    """
    whole, rest = divmod(samples, batch_size * world_size)
    return whole + (not drop_last and rank < rest)


def unshard(parts_by_rank: Sequence[Sequence[Part]]) -> list[Part]:
    """What the ranks made of their batches, in the order of the loader: first of each rank, then second of each.

    ``parts_by_rank[r]`` is a list with one entry for each batch that rank ``r`` got; since a global batch is divided
    in rank order, joining the result gives the data set's order and length.

    >>> unshard([["a", "d", "g"], ["b", "e"], ["c", "f"]])
    ['a', 'b', 'c', 'd', 'e', 'f', 'g']
    """
    longest = max((len(parts) for parts in parts_by_rank), default=0)
    return [parts[turn] for turn in range(longest) for parts in parts_by_rank if turn < len(parts)]


def accumulation_for(saved: int, batch_size: int, world_size: int) -> int:
    """How many batches a step must be made of, so that it sees ``saved`` samples as before.

    ``saved`` is batch size times processes times accumulation of the run that saved; the other two are of the run
    that goes on. Refused, with the numbers, if no whole number does it.

    >>> accumulation_for(saved=64, batch_size=8, world_size=2)
    4
    """
    together = batch_size * world_size
    if saved < 1 or together < 1:
        raise ValueError(f"sizes are at least 1: the saved step has {saved} samples, a batch on all ranks {together}")
    steps, rest = divmod(saved, together)
    if rest or not steps:
        fitting = [size for size in range(1, saved // world_size + 1) if saved % (size * world_size) == 0]
        advice = (
            f"batch sizes that do: {', '.join(map(str, fitting))}" if fitting else "use another number of processes"
        )
        raise ValueError(
            f"a step of the saved run sees {saved} samples; {world_size} process(es) with batch size {batch_size} see "
            f"{together} at once, and {saved} is not a multiple of that. With {world_size} process(es), {advice}"
        )
    return steps
