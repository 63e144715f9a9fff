"""Rounds in which this process has no batch left and others have: it takes part with nothing of its own."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist

from cadenza.clock import Cadence, Duration
from cadenza.data import Feed, to_device
from cadenza.data.sample_order import splits_evenly, splits_itself
from cadenza.distributed.agreement.collectives import summed
from cadenza.engine.state import GONE
from cadenza.execution.empty_round import empty_round

if TYPE_CHECKING:
    from cadenza.distributed.agreement.process_group import ProcessGroup
    from cadenza.engine.stack import Pass
    from cadenza.run import Run


def keep_step(ensemble: ProcessGroup, run: Run, this: Pass, found: bool) -> bool:
    """After a fetch: whether this process has a batch to play. If only others have, it plays along until they end."""
    if not (this.training or ensemble.lockstep):
        return found
    if this.rounds is not None:
        this.samples_of_all = _known_samples(this, ensemble.world.world_size)
        this.all_have = this.shared_rounds is None or this.index < this.shared_rounds
        if found and this.index >= this.rounds:
            warnings.warn(f"the {this.stage} loader gives more batches than it said; they are left out", stacklevel=2)
            return False
        while not found and this.index + 1 < this.rounds and not _ends(run):
            play_along(ensemble, run, this)
        return found
    while not _everyone_ended(ensemble, run, this, found):
        if found:
            return True
        play_along(ensemble, run, this)
        if _ends(run) or (run.num_steps is not None and run.clock.steps >= run.num_steps):
            break
    return False


def _ends(run: Run) -> bool:
    return run.is_asked("end_epoch") or run.is_asked("stop")


class SharedCadence(Cadence):
    """For what all processes do together in the midst of an epoch, such as a validation: it is put off while one of
    them has no batch, since that one does not come by."""

    def __init__(self, interval: str | Duration, run: Run) -> None:
        self._run = weakref.ref(run)
        super().__init__(interval, run.clock)

    def due(self) -> bool:
        run = self._run()
        return (run is None or run.all_have_batch) and super().due()


def refuse_lonely_pass(run: Run) -> None:
    """Opening a pass in the midst of an iteration would wait for ever if others have no batch in it."""
    if run.is_iterating and not run.all_have_batch:
        raise RuntimeError(
            f"rank {run.rank} opens a pass in a training iteration for which others have no batch, so they do not come "
            "by: do it when the epoch ends, or ask run.cadence(...) whether it is time"
        )


def donor(left: list[int | None]) -> int | None:
    """The first rank that has batches in this pass, if another has none at all: after a resume its part may be done.

    >>> donor([2, 0]), donor([2, 1]), donor([0, 0]), donor([None, 0])
    (0, None, None, None)
    """
    known = [count for count in left if count is not None]
    if len(known) < len(left) or min(known) > 0 or max(known) <= 0:
        return None
    return next(rank for rank, count in enumerate(known) if count > 0)


def receive_batch(run: Run, this: Pass, found: bool) -> None:
    """Once in such a pass: the batch that a process without one goes along with comes from one that has."""
    rank, this.donor = this.donor, None
    box = [to_device(run.batch, torch.device("cpu")) if run.rank == rank else None]
    dist.broadcast_object_list(box, src=rank)
    if not found:
        this.last = to_device(box[0], run.device)


def _known_samples(this: Pass, world_size: int) -> float | None:
    """How many samples all processes have in this round, if the feed knows and nobody counts in another way."""
    if not isinstance(this.feed, Feed) or this.score.count is not None:
        return None
    loader, known = this.feed.loader, this.feed.portion(this.index)
    if known is None or not splits_itself(loader):
        return None if known is None else float(known[1])
    return float(known[1] * world_size) if splits_evenly(loader) else None


def _everyone_ended(ensemble: ProcessGroup, run: Run, this: Pass, found: bool) -> bool:
    """One message a round, for a loader of which nobody knows how many batches it gives each process."""
    samples = run.main.count(run)[0] if found else 0
    having, this.samples_of_all = summed([found, samples], ensemble.place)
    this.all_have = having == ensemble.world.world_size
    return not having


def play_along(ensemble: ProcessGroup, run: Run, this: Pass) -> None:
    """One round without a batch."""
    if this.last is GONE:
        raise ValueError(
            f"the {this.stage} loader gave rank {run.rank} no batch at all, so it cannot take part in the rounds of "
            "the others: use fewer processes or a smaller batch size"
        )
    this.index += 1
    if this.rounds is not None:
        this.samples_of_all = _known_samples(this, ensemble.world.world_size)
    empty_round(run, this, this.last)
