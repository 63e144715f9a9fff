"""Sends small messages between all processes, and guards code that only some ranks run against collectives."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from cadenza.foundation.torch_private import TorchDispatchMode

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.run import Run


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


_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional")


class LonelyCollective(RuntimeError):
    """A collective was begun where only some of the processes are."""


class NoCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, every collective raises instead of waiting; ``said`` with its name tells why."""

    def __init__(self, said: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.said = said

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "namespace", None) in _COLLECTIVES:
            raise LonelyCollective(self.said.format(func.__name__))
        return func(*args, **(kwargs or {}))


def alone(who: str) -> NoCollectives:
    """For what only some ranks play."""
    return NoCollectives(
        f"{who} does not play on all ranks, but calls {{}}, for which all of them are needed: let it play on all "
        '(ranks = "all") and look at run.is_main where it writes'
    )


def guarded(callback: Callback, player: Callable[[Run], Any]) -> Callable[[Run], Any]:
    """``player``, with every collective in it raised as an error."""

    @functools.wraps(player)
    def play(run: Run) -> Any:
        with alone(callback.name):
            return player(run)

    return play


def main_only(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for a method of a callback that is to be played on rank 0 alone, while its others play everywhere.

    >>> from cadenza import Callback
    >>> class Told(Callback):
    ...     @main_only
    ...     def after_epoch(self, run):
    ...         print(f"epoch {run.epoch} of {run.world_size} processes")
    """

    inside = contextlib.contextmanager(method) if inspect.isgeneratorfunction(method) else method

    @functools.wraps(method)
    def play(self: Any, run: Run) -> Any:
        if not run.is_main:
            return None
        if run.processes.debug:
            with alone(f"{self.name}.{method.__name__}"):
                return inside(self, run)
        return inside(self, run)

    return play


# Values of a pass --------------------------------------------------------------------------------------------------

Parts = Mapping[str, tuple[str, float, int]]
"""For each name how its values become one, their sum or value, and the weight of that."""


def over_ranks(everyone: list[Parts], last: Mapping[str, float]) -> dict[str, Any]:
    """One value for each name that any process logged. A process that did not log it has no weight. Of "last" it is the
    value of the first process that has one, unless ``last`` has the mean of all of them.

    >>> first = {"a": ("mean", 6.0, 2), "b": ("last", 1.0, 0)}
    >>> over_ranks([first, {"a": ("mean", 6.0, 4), "b": ("last", 2.0, 0), "c": ("max", 3.0, 0)}], {})
    {'a': 2.0, 'b': 1.0, 'c': 3.0}
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for one in everyone for name in one):
        parts = [one[name] for one in everyone if name in one]
        numbers = [number for _, number, _ in parts]
        how = parts[0][0]
        if how == "mean":
            found[name] = sum(numbers) / sum(weight for _, _, weight in parts)
        elif how == "last":
            found[name] = last.get(name, numbers[0])
        elif how == "sum" or any(map(math.isnan, numbers)):
            found[name] = sum(numbers)
        else:
            found[name] = max(numbers) if how == "max" else min(numbers)
    return found
