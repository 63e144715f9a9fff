"""Rounds in which this process has no batch left and others have: it takes part with nothing of its own."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

from cadenza.clock import Cadence, Duration
from cadenza.data import Feed, to_device
from cadenza.data.sample_order import splits_evenly, splits_itself
from cadenza.distributed.agreement.collectives import summed
from cadenza.engine import boundaries
from cadenza.engine.fields import GONE, NOTHING, UNWEIGHTED
from cadenza.engine.iteration import is_last, release
from cadenza.engine.requests import END_EPOCH, OF_ITERATION, SKIP_BATCH, STOP
from cadenza.foundation.kept_state import buffers_kept
from cadenza.foundation.rng import rng_kept
from cadenza.foundation.torch_private import tree_leaves

if TYPE_CHECKING:
    from cadenza.distributed.agreement.process_group import ProcessGroup
    from cadenza.distributed.strategies.gradients import Gradients
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
        while not found and this.index + 1 < this.rounds and not run._asked & (END_EPOCH | STOP):
            play_along(ensemble, run, this)
        return found
    while not _everyone_ended(ensemble, run, this, found):
        if found:
            return True
        play_along(ensemble, run, this)
        if run._asked & (END_EPOCH | STOP) or run.clock.steps >= run._last_step:
            break
    return False


class SharedCadence(Cadence):
    """For what all processes do together in the midst of an epoch, such as a validation: it is put off while one of
    them has no batch, since that one does not come by."""

    def __init__(self, interval: str | Duration, run: Run) -> None:
        self._run = weakref.ref(run)
        super().__init__(interval, run.clock)

    def due(self) -> bool:
        run = self._run()
        return (run is None or run._pass.all_have) and super().due()


def refuse_lonely_pass(run: Run) -> None:
    """Opening a pass in the midst of an iteration would wait for ever if others have no batch in it."""
    this = run._pass
    if this.iterating and not this.all_have:
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
    box = [to_device(run._batch, torch.device("cpu")) if run.rank == rank else None]
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
    """One round without a batch: the last one goes through the model once more, and counts nothing. In training the
    backward, step and zero_grad spans are played, since the weights change here as they do elsewhere."""
    if this.last is GONE:
        raise ValueError(
            f"the {this.stage} loader gave rank {run.rank} no batch at all, so it cannot take part in the rounds of "
            "the others: use fewer processes or a smaller batch size"
        )
    this.index += 1
    if this.rounds is not None:
        this.samples_of_all = _known_samples(this, ensemble.world.world_size)
    if this.training:
        run.clock.batches += 1
    ensemble.begin_round(run, this)
    ensemble.empty = this.iterating = True
    try:
        run._batch = this.last
        if run._asked & SKIP_BATCH:
            pass
        elif this.training:
            _train_on_nothing(run, this)
        else:
            with torch.no_grad(), rng_kept(run.device), buffers_kept(run.module):
                run.main.on_pred_forward(run)
        if run._rows["iter"] is not None:
            run._write_row("iter")
    finally:
        ensemble.empty = this.iterating = False
        run._batch = run._output = run._loss = GONE
        run._skipped, run.loss_weight = NOTHING, UNWEIGHTED
    ensemble.decide(run, this)
    if this.training:
        boundaries.between_iterations(run, this)
    run._asked &= ~OF_ITERATION


def _train_on_nothing(run: Run, this: Pass) -> None:
    with buffers_kept(run.module):  # a backward may need them as they were in the forward
        with rng_kept(run.device):
            run.main.on_train_forward(run)
            run._loss = nothing(run)
        run._forwarded, run._skipped = this.index, frozenset({"forward", "loss"})
        steps = this.score.verbs.backward(run)
    if steps:
        this.score.verbs.step(run)
    if run._held and not run._asked & STOP and is_last(run, this):
        release(run, this)


def nothing(run: Run) -> Tensor:
    """A loss of zero that depends on all that the model returned."""
    parts = [part for part in tree_leaves(run._output) if isinstance(part, Tensor) and part.requires_grad]
    if not parts and run._loss is GONE:
        run.main.on_iter_loss(run)
    if not parts:
        parts = [run.loss]
    return torch.stack([(part * 0).sum().float() for part in parts]).sum()


def settle_held(ensemble: Gradients, run: Run, this: Pass) -> None:
    """Gradients that were held for a batch that never came were not put together: a backward of nothing does it."""
    fields, asked, holds = run._fields(), run._asked, ensemble.holds
    ensemble.empty, ensemble.holds, ensemble.synced = True, None, True
    run._asked &= ~OF_ITERATION
    try:
        if run._batch is GONE:
            run._batch = this.last
        with buffers_kept(run.module):
            with rng_kept(run.device):
                run.main.on_train_forward(run)
                run._loss = nothing(run)
            ensemble.carry(run, run._loss).backward()  # type: ignore[no-untyped-call]
            ensemble.after_backward(run)
    finally:
        ensemble.empty, ensemble.synced, run._asked = False, True, asked
        ensemble.holds = holds
        run._set_fields(fields)
