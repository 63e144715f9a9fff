"""The processes of a training as the run sees them: what is told, agreed and put together, and when."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.data import Feed, length_of, unshard
from cadenza.distributed.agreement import Agreement
from cadenza.distributed.failure import Parted, RankFailed, may_be_news, told
from cadenza.distributed.guard import NoCollectives
from cadenza.distributed.lifeline import Lifeline
from cadenza.distributed.reduction import Reduction, at_once
from cadenza.distributed.ride import Ride
from cadenza.distributed.shadow import donor, keep_step, nothing, receive_batch, settle_held
from cadenza.distributed.standing import Standing, where_it_failed
from cadenza.distributed.states import collected
from cadenza.distributed.talk import from_main, gathered, meeting_place, summed
from cadenza.fields import UNWEIGHTED
from cadenza.frames import Outside, Pass
from cadenza.requests import HOLD_STEP, SKIP_BATCH

if TYPE_CHECKING:
    from cadenza.distributed.writing import Crew
    from cadenza.run import Run

log = logging.getLogger("cadenza")
_EVERY = 8
"""Where nothing rides along with a reduction, the processes look every so many iterations whether somebody asks."""


class Ensemble:
    """Kept from one run to the next, beginning with the first that needs the other processes."""

    def __init__(self, lifeline: Lifeline, device: torch.device, *, debug: bool | None, lockstep: bool) -> None:
        self.lifeline, self.world, self.device = lifeline, lifeline.world, device
        self.debug = bool(os.environ.get("CADENZA_DEBUG")) if debug is None else debug
        self.lockstep = lockstep
        """Whether evaluation has collectives in its forward, so that no process may do more batches than another."""
        self.crew: Crew | None = None
        """Who saves together, if each process stores its own part of a checkpoint."""
        self.place = meeting_place(device)
        self.agreement = Agreement(self.world.rank, self.world.world_size, self.place)
        self.model: Any = None
        self.ride: Ride | None = None
        self.reduction: Reduction | None = None
        """Puts gradients together after the backward, where steps are recorded; the ride stays out of it."""
        self.empty = False
        self.evaluated = False
        self.trained: tuple[bool, ...] = ()
        self.synced = True
        self.holds: Callable[[], bool] | None = None
        """Says before a forward whether its gradients will be held for a later one."""
        self._run: weakref.ref[Run] | None = None
        self._asked_in_ride = False
        self._later: list[tuple[Any, str, int]] = []

    @property
    def run(self) -> Run | None:
        return self._run() if self._run is not None else None

    # Requests -------------------------------------------------------------------------------------------------------

    def ask(self, run: Run, request: str, reason: str | None = None) -> None:
        """A callback asked. In an evaluation without collectives a batch is skipped without asking the others."""
        if request == "skip_batch" and run.stage != "train" and not self.lockstep:
            run._asked |= SKIP_BATCH
        else:
            self.agreement.ask(run, request, reason)

    def waiting(self, run: Run) -> list[list[Any]]:
        """What this process asked and the others have not agreed on yet."""
        return self.agreement.waiting(paused=run.is_paused)

    def skip(self, run: Run, mask: int) -> None:
        """All agree on the skips in ``mask``. Called where they are due, and only if a callback declares them."""
        if run.stage == "train" or self.lockstep:
            self.agreement.skip(run, mask)

    def decide(self, run: Run, this: Pass) -> None:
        """Between two iterations: if somebody asked for something, all decide on it."""
        self.raise_failure()
        self.agreement.end_iteration()
        asks, self._asked_in_ride = self._asked_in_ride, False
        rides = this.training and (self.ride is not None or self.reduction is not None)
        if not rides and self._meets_after(this):
            asks = self._look(run)
        if asks:
            self.agreement.settle(run)

    def _meets_after(self, this: Pass) -> bool:
        """Whether every process comes by here after as many iterations."""
        together = this.training or self.lockstep or this.index + 1 < (this.rounds or 0)
        return together and (this.index + 1) % _EVERY == 0

    def _look(self, run: Run) -> bool:
        asks, seconds = summed([self.agreement.untold, run.clock.wall if self.world.is_main else 0.0], self.place)
        run.clock.agreed = seconds
        return asks > 0

    def settle(self, run: Run) -> None:
        """At the boundary of a pass or an epoch, where all come by."""
        self.raise_failure()
        if self._look(run):
            self.agreement.settle(run)

    # Gradients ------------------------------------------------------------------------------------------------------

    def syncs(self, run: Run) -> bool:
        """Whether the gradients of the coming backward are put together: not while they are held for a later one."""
        this = run._pass
        last = this.rounds is not None and this.index + 1 >= this.rounds
        holds = run._asked & HOLD_STEP or (self.holds is not None and self.holds())
        self.synced = last or not holds
        return self.synced

    def carry(self, run: Run, loss: Tensor) -> Tensor:
        """``loss`` with what this process has to say."""
        if self.ride is None or self.reduction is not None or not self.synced:
            return loss
        return self.ride.put_on(loss, *self._say(run))

    def after_backward(self, run: Run) -> None:
        if self.reduction is not None:
            whole = self.reduction.whole
            if self.synced:
                self.reduction.reduce(lambda: self._say(run), lambda heard: self._hear(run, heard, whole))
        elif self.ride is not None and (heard := self.ride.take_off()) is not None:
            self._hear(run, heard, self.ride.whole)

    def _say(self, run: Run) -> list[float]:
        """Whether this process asks for anything, and on rank 0 the time."""
        return [float(self.agreement.untold), run.clock.wall if self.world.is_main else 0.0]

    def _hear(self, run: Run, heard: list[float], whole: bool) -> None:
        self._asked_in_ride = heard[0] > 0
        if whole:
            run.clock.agreed = heard[1]

    def weighted(self, run: Run, *, share: bool) -> Tensor:
        """The loss as it is back-propagated. DDP and FSDP take the mean over processes, so with ``share`` a batch that
        holds more or less than theirs on average weighs more or less; one that holds nothing gives no gradient."""
        weight: float | Tensor = run.loss_weight
        if share:
            mine = 0 if self.empty else run.main.count(run)[0]
            whole = self.mean_count(run, mine, samples=True)
            if mine != whole:
                weight = weight * (mine / whole)
        if weight is UNWEIGHTED:
            return run.loss
        if not self.empty and not isinstance(weight, Tensor) and weight == 0:
            return nothing(run)
        return run.loss * weight

    def mean_count(self, run: Run, count: float | Tensor, *, samples: bool) -> float | Tensor:
        """What a process has on average of what this one has ``count`` of; a message, unless the samples are known."""
        this = run._pass
        if samples and this.samples_of_all is not None:
            return this.samples_of_all / self.world.world_size
        if isinstance(count, Tensor):
            total = count.detach().clone()
            torch.distributed.all_reduce(total)
            return total / self.world.world_size
        return summed([count], self.place)[0] / self.world.world_size

    # Passes ---------------------------------------------------------------------------------------------------------

    def begin_pass(self, run: Run, this: Pass) -> None:
        """Learns how many rounds the pass has, if that can be known; wraps anew what is trained from here on."""
        steps = this.feed.steps if isinstance(this.feed, Feed) else length_of(this.feed)
        length = length_of(this.feed)
        everyone = gathered((steps, None if length is None else length - this.index - 1))
        rounds = [one[0] for one in everyone]  # a loader that divides itself may give them different numbers
        this.rounds = None if None in rounds else max(rounds)
        this.donor = donor([one[1] for one in everyone]) if this.training or self.lockstep else None
        if this.training:
            run.training_state.strategy.refresh(run, self)

    def keep_step(self, run: Run, this: Pass, found: bool) -> bool:
        """After a fetch: whether there is a batch to play here. Rounds that only others have are played along."""
        if found:
            this.last = run._batch
        if this.donor is not None:
            receive_batch(run, this, found)
        found = keep_step(self, run, this, found)
        if found and this.training:
            self.share_buffers()
        return found

    def share_buffers(self) -> None:
        """Before a round, if its forward does not do that: it may be recorded."""
        if self.reduction is not None and self.synced:
            self.model.share_buffers()

    def has_even_share(self, run: Run) -> bool:
        """Whether this process has as many samples in this round as the others on average."""
        known = run._pass.samples_of_all
        return known is not None and run.main.count(run)[0] * self.world.world_size == known

    @contextmanager
    def talking(self, between: Callable[[Callable[[], None]], None], *, only: bool = False) -> Iterator[None]:
        """``between`` gets what puts gradients together, to call it when it is time. With ``only`` every other
        collective is refused, as it must be while a step is recorded."""
        if self.reduction is None:
            yield
            return
        refused = NoCollectives("the step talks to the other processes in its midst ({})") if only else nullcontext()
        self.reduction.between = between
        try:
            with refused:
                yield
        finally:
            self.reduction.between = at_once

    def settle_held(self, run: Run, this: Pass | Outside) -> None:
        """Before a step: gradients that were held for a batch that did not come are put together now."""
        if not self.synced and isinstance(this, Pass):
            settle_held(self, run, this)

    def count(self, run: Run, this: Pass, samples: int, tokens: int) -> None:
        """Counts a batch. The clock counts the samples of all; what this process cannot know is put right at the end of
        the pass."""
        if this.training:
            whole = samples * self.world.world_size if this.samples_of_all is None else int(this.samples_of_all)
            run.clock.batches += 1
            run.clock.samples += whole
            run.clock.tokens += tokens * self.world.world_size
            this.counted[0] += whole
            this.counted[1] += tokens * self.world.world_size
        this.seen[0] += samples
        this.seen[1] += tokens

    def mean(self, run: Run, this: Pass) -> Tensor | None:
        """The mean loss of the pass over all processes, as in one that had all the samples. It counts them, too."""
        this.mean.value()  # folds what is still waiting
        total = 0.0 if this.mean.total is None else float(this.mean.total)
        logged = [(name, key, row.raw()[name]) for row, name, key in self._later if name in row]
        mine = (total, this.mean.weight, this.seen, [(name, key, float(value)) for name, key, value in logged])
        everyone = gathered(mine)
        self._settle_logged(run, [one[3] for one in everyone])
        if this.training:
            clock, seen = run.clock, [sum(one[2][place] for one in everyone) for place in range(2)]
            clock.samples += seen[0] - this.counted[0]
            clock.tokens += seen[1] - this.counted[1]
        weight = sum(one[1] for one in everyone)
        return torch.tensor(sum(one[0] for one in everyone) / weight, dtype=torch.float64) if weight else None

    def end_pass(self, run: Run) -> None:
        self.share_values(run)
        self.agreement.forget("end_epoch")

    def end_epoch(self, run: Run) -> None:
        self.share_values(run)
        self.settle(run)
        self.agreement.forget("skip_validation")

    def collected(self, run: Run, state: dict[str, Any]) -> dict[str, Any]:
        """The state of all processes, on rank 0."""
        return collected(self, run, state)

    def from_main(self, value: Any) -> Any:
        return from_main(value)

    def from_any(self, value: Any) -> Any:
        return next((one for one in gathered(value) if one is not None), None)

    def joined(self, outputs: list[Any], counts: list[int]) -> tuple[list[Any], list[int]]:
        """What all processes made of their batches, in the order of the data set, on all of them."""
        everyone = gathered((outputs, counts))
        parts = [unshard([one[place] for one in everyone]) for place in range(2)]
        return parts[0], parts[1]

    def log_later(self, row: Any, name: str, key: int) -> None:
        """A value of an iteration whose mean over the processes is wanted: they are put together when the pass ends."""
        self._later.append((row, name, key))

    def log_now(self, run: Run, name: str, value: float | Tensor) -> float:
        who = run._playing
        if who is not None and who.ranks != "all":
            raise RuntimeError(f"{who.name} logs {name!r} over all ranks, but plays only on some of them")
        numbers = gathered(float(value))
        return float(sum(numbers)) / len(numbers)

    def _settle_logged(self, run: Run, everyone: list[list[tuple[str, int, float]]]) -> None:
        found: dict[tuple[str, int], list[float]] = {}
        for name, key, value in (entry for one in everyone for entry in one):
            found.setdefault((name, key), []).append(value)
        for row, name, key in self._later:
            if (name, key) in found:
                row[name] = run.metrics[name] = sum(found[name, key]) / len(found[name, key])
        self._later.clear()

    def share_values(self, run: Run) -> None:
        """What rank 0 logged for this pass or epoch is what all have."""
        kind = run._kind_of_row()
        row = run._rows[kind]
        values = from_main(None if row is None else {name: row[name] for name in row})
        for name, value in (values or {}).items():
            run.metrics[name] = value
            run._current_row()[name] = value

    # Failures -------------------------------------------------------------------------------------------------------

    def follow(self, run: Run) -> None:
        """From here on ``run`` is the one that is told of and interrupted."""
        if self.lifeline.failure is not None:
            raise Parted(self.lifeline.failure)
        self._run, run._ensemble = weakref.ref(run), self  # what fails from here on is told
        self._standing = Standing(run, self.world.rank)
        self.lifeline.on_failure, self.lifeline.where = self._standing.interrupt, self._standing.where
        self._later, self.holds, self.synced = [], None, True
        self._look(run)

    def raise_failure(self) -> None:
        if self.lifeline.failure is not None:
            raise RankFailed(self.lifeline.failure)

    def failed(self, run: Run, error: BaseException) -> BaseException:
        """A run ends with ``error``: tells the others, or if one of them failed first, says that instead."""
        lifeline = self.lifeline
        self._standing.calm()
        if isinstance(error, RankFailed):
            return error if error.rank is not None else RankFailed(lifeline.failure)
        if getattr(error, "agreed", False):
            return error
        if may_be_news(error):
            lifeline.known.wait(3.0)
        if lifeline.failure is not None and lifeline.failure["rank"] != self.world.rank:
            return RankFailed(lifeline.failure)
        lifeline.report(told(self.world.rank, where_it_failed(run, error), error))
        if lifeline.failure is not None and lifeline.failure["rank"] != self.world.rank:
            return RankFailed(lifeline.failure)
        return error

    def end(self) -> None:
        """The run is over: nothing can interrupt it any more."""
        self._standing.end()
