"""Which samples come next: the index batches of one pass, for one rank, from any position, without reading a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from cadenza.data.index_walk import FRESH, Mark, Start, Walk
from cadenza.data.shards import batches_left, steps_left
from cadenza.foundation.generators import generators_in, unpack

_KNOWN = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
"""Samplers that draw from the generators of the process at their beginning and then no more."""


def splits_itself(loader: Any) -> bool:
    """Whether the loader's sampler takes this rank's part already, as ``DistributedSampler`` does."""
    batches: Any = getattr(loader, "batch_sampler", None)
    for one in (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
        if isinstance(one, DistributedSampler) or (hasattr(one, "num_replicas") and hasattr(one, "rank")):
            return True
    return False


def splits_evenly(loader: Any) -> bool:
    """Whether all ranks have batches of the same sizes: torch's sampler pads or drops until they have."""
    sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    return type(sampler) is DistributedSampler and (
        batches is None or (type(batches) is BatchSampler and batches.sampler is sampler)
    )


def _source(loader: Any) -> Any:
    """Who makes the order. The sampler of a loader that was given a batch sampler does not: nobody asks it."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else batches


class Order:
    """Stands in for the sampler of a ``DataLoader``: the same index batches, from ``start`` on, this rank's part.

    The cursor counts samples over all ranks (batches of a batch sampler of one's own), so that it means the same
    whatever the number of processes is.
    """

    keeps = True
    """Whether positions can be asked for; if not, the generators are not looked at."""

    def __init__(self, loader: DataLoader[Any], rank: int, world_size: int, share: Callable[[Any], Any]) -> None:
        self.plain = type(loader.batch_sampler) is BatchSampler
        self.single = loader.batch_sampler is None
        self.batches: Any = loader.batch_sampler
        self.source = _source(loader)
        self.rank, self.world_size = (0, 1) if splits_itself(loader) else (rank, world_size)
        self.share = share
        self.own = generators_in(loader.generator, loader.batch_sampler, loader.sampler)
        self.stateful = hasattr(self.source, "state_dict") and hasattr(self.source, "load_state_dict")
        self.known = type(self.source) in _KNOWN and not self.stateful
        self.drawn_ahead = loader.num_workers * (loader.prefetch_factor or 1)
        self.start = FRESH
        self.unused = 0
        self.walk_type = Walk
        self.walk: Walk | None = None

    @property
    def counts_samples(self) -> bool:
        return self.plain or self.single

    @property
    def batch_size(self) -> int:
        return self.batches.batch_size if self.plain else 1  # asked each time: it may be changed between passes

    @property
    def drop_last(self) -> bool:
        return bool(self.plain and self.batches.drop_last)

    @property
    def stride(self) -> int:
        """How far the cursor moves with each batch of this rank."""
        return self.batch_size * self.world_size

    def __iter__(self) -> Walk:
        # with workers, DataLoader asks twice and uses the second; what the first draws decides the workers' seeds
        self.walk = self.walk_type(self, FRESH if self.unused else self.start)
        self.unused = max(self.unused - 1, 0)
        return self.walk

    def __len__(self) -> int:
        return self.length(0)

    def total(self) -> int:
        """All samples of a pass, over all ranks (batches, for a batch sampler of one's own)."""
        return len(self.source)

    def length(self, cursor: int) -> int:
        """How many batches this rank gets from ``cursor`` on."""
        left = max(self.total() - cursor, 0)
        return batches_left(left, self.batch_size, self.rank, self.world_size, self.drop_last)

    def steps(self, cursor: int) -> int:
        """How many global batches there are from ``cursor`` on."""
        return steps_left(max(self.total() - cursor, 0), self.batch_size, self.world_size, self.drop_last)

    def mark(self) -> Mark | None:
        """Where a sampler of one's own stands now, if it is not asked for more than is read; else notes are kept."""
        return None if self.known or self.drawn_ahead or self.walk is None else self.walk.mark()

    def position(self, batches: int, mark: Mark | None) -> dict[str, Any]:
        """The tree that ``resume`` reads: where the pass stands after ``batches`` of this walk."""
        assert self.walk is not None
        return self.walk.position(batches, mark)

    def resume(self, tree: Any) -> Start:
        """Checks that the position fits this sampler, and returns where a pass must start to go on from it."""
        unit, total = ("samples" if self.counts_samples else "batches"), self.total_if_known()
        if tree["unit"] != unit or tree["total"] != total:
            raise ValueError(
                f"the saved position counts {tree['unit']} of {tree['total']}, this loader has {total} {unit}: a pass "
                "can go on only over the same data; give the loader of the saved run, or begin the epoch anew"
            )
        return Start(
            tree["cursor"],
            unpack(tree["at_iter"]),
            unpack(tree["at_first"]),
            tree["sampler"],
            tree["check"],
            tree["over"],
            tree["begun"],
        )

    def total_if_known(self) -> int | None:
        try:
            return self.total()
        except (TypeError, NotImplementedError):
            return None
