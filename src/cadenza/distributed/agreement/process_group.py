"""The processes of a training as the run sees them: what is told, agreed and put together, and when."""

from __future__ import annotations

import logging
import os
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.data import Feed, length_of, unshard
from cadenza.distributed.agreement.agreement import Agreement
from cadenza.distributed.agreement.collectives import from_main, gathered, meeting_place, over_ranks, summed
from cadenza.distributed.agreement.uneven_batches import (
    SharedCadence,
    donor,
    keep_step,
    receive_batch,
    refuse_lonely_pass,
)
from cadenza.distributed.failures.failure_channel import Lifeline
from cadenza.distributed.failures.interrupt import Standing, where_it_failed
from cadenza.distributed.failures.rank_errors import Parted, RankFailed, may_be_news, told
from cadenza.distributed.sharded.all_ranks import collected
from cadenza.distributed.strategies.gradients import Gradients
from cadenza.engine.requests import SKIP_BATCH
from cadenza.engine.stack import Pass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cadenza.clock import Cadence, Duration
    from cadenza.distributed.sharded.commit import Crew
    from cadenza.engine.processes import Granted
    from cadenza.run import Run

log = logging.getLogger("cadenza")
_EVERY = 8
"""Where nothing rides along with a reduction, the processes look every so many iterations whether somebody asks."""


class ProcessGroup(Gradients):
    """Kept from one run to the next, beginning with the first that needs the other processes."""

    def __init__(self, lifeline: Lifeline, device: torch.device, *, debug: bool | None, lockstep: bool) -> None:
        super().__init__()
        self.lifeline, self.world, self.device = lifeline, lifeline.world, device
        self.size = self.world.world_size
        self.debug = bool(os.environ.get("CADENZA_DEBUG")) if debug is None else debug
        self.lockstep = lockstep
        """Whether evaluation has collectives in its forward, so that no process may do more batches than another."""
        self.crew: Crew | None = None
        """Who saves together, if each process stores its own part of a checkpoint."""
        self.place = meeting_place(device)
        self.agreement = Agreement(self.world.rank, self.world.world_size, self.place)
        self.model: Any = None
        self.wrapped = False
        """Whether torch has wrapped the module in some run, and so given all processes rank 0's weights."""
        self.evaluated = False
        self.trained: tuple[bool, ...] = ()
        self.frozen: dict[str, Tensor] = {}
        self._run: weakref.ref[Run] | None = None
        self._later: list[tuple[Any, str, int]] = []

    @property
    def run(self) -> Run | None:
        return self._run() if self._run is not None else None

    # Requests -------------------------------------------------------------------------------------------------------

    def ask(self, run: Run, request: str, reason: str | None = None) -> bool:
        """A callback asked. In an evaluation without collectives a batch is skipped without asking the others."""
        if request == "skip_batch" and run.stage != "train" and not self.lockstep:
            return True
        return self.agreement.ask(run, request, reason)

    def wait_again(self, request: str, rule: str, reason: str | None) -> bool:
        self.agreement.wait_again(request, rule, reason)
        return False

    def waiting(self, run: Run) -> list[list[Any]]:
        """What this process asked and the others have not agreed on yet."""
        return self.agreement.waiting(paused=run.is_paused)

    def skip(self, run: Run, mask: int) -> int:
        """All agree on the skips in ``mask``. Called where they are due, and only if a callback declares them."""
        return self.agreement.skip(mask) if run.stage == "train" or self.lockstep else 0

    def decide(self, run: Run, this: Pass) -> list[Granted]:
        """Between two iterations: if somebody asked for something, all decide on it."""
        self.raise_failure()
        self.agreement.end_iteration()
        asks, self._asked_in_ride = self._asked_in_ride, False
        rides = this.training and (self.ride is not None or self.reduction is not None)
        if not rides and self._meets_after(this):
            asks = self._look(run)
        return self.agreement.settle() if asks else []

    def _meets_after(self, this: Pass) -> bool:
        """Whether every process comes by here after as many iterations."""
        together = this.training or self.lockstep or this.index + 1 < (this.rounds or 0)
        return together and (this.index + 1) % _EVERY == 0

    def _look(self, run: Run) -> bool:
        asks, seconds = summed([self.agreement.untold, run.clock.wall if self.world.is_main else 0.0], self.place)
        run.clock.agreed = seconds
        return asks > 0

    def settle(self, run: Run) -> list[Granted]:
        """At the boundary of a pass or an epoch, where all come by."""
        self.raise_failure()
        refuse_lonely_pass(run)
        return self.agreement.settle() if self._look(run) else []

    def cadence(self, run: Run, interval: str | Duration) -> Cadence:
        return SharedCadence(interval, run)

    # Passes ---------------------------------------------------------------------------------------------------------

    def begin_pass(self, run: Run, this: Pass) -> None:
        """Learns how many rounds the pass has, if that can be known; wraps anew what is trained from here on."""
        steps = this.feed.steps if isinstance(this.feed, Feed) else length_of(this.feed)
        length = length_of(this.feed)
        everyone = gathered((steps, None if length is None else length - this.index - 1))
        rounds = [one[0] for one in everyone]  # a loader that divides itself may give them different numbers
        this.rounds = None if None in rounds else max(rounds)
        left = [one[1] for one in everyone]
        this.shared_rounds = None if None in left else this.index + 1 + min(left)
        this.donor = donor(left) if this.training or self.lockstep else None
        if this.training:
            run.training_state.strategy.refresh(run, self)

    def keep_step(self, run: Run, this: Pass, found: bool) -> bool:
        """After a fetch: whether there is a batch to play here. Rounds that only others have are played along."""
        if found:
            this.last = run.batch
        if this.donor is not None:
            receive_batch(run, this, found)
        return keep_step(self, run, this, found)

    def is_last(self, this: Pass) -> bool:
        """What one process sees, the others do not: only what all know counts."""
        return this.rounds is not None and this.index + 1 >= this.rounds

    def begin_round(self, run: Run, this: Pass) -> int:
        """Before the forward: all agree whether the batch is skipped, if a callback may ask for that."""
        agreed = self.skip(run, SKIP_BATCH) if this.score.plan.declared & SKIP_BATCH else 0
        if this.training and not agreed and not run.is_asked("skip_batch"):
            self.prepare(run)
        return agreed

    def counts_of(self, this: Pass) -> dict[str, Any]:
        return {"seen": list(this.seen), "counted": list(this.counted)}

    def restore_counts(self, this: Pass, saved: Mapping[str, Any]) -> None:
        if "seen" in saved:
            this.seen, this.counted = list(saved["seen"]), list(saved["counted"])

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

    def over_pass(self, run: Run, this: Pass) -> tuple[Tensor | None, dict[str, Any]]:
        """The mean loss of the pass over all processes, as in one that had all the samples, and the values over it of
        what any of them logged. It counts the samples, too."""
        this.mean.value()  # folds what is still waiting
        total = 0.0 if this.mean.total is None else float(this.mean.total)
        later = [(name, key, row.raw()[name]) for row, name, key in self._later if name in row]
        mine = (total, this.mean.weight, this.seen, [(name, key, float(value)) for name, key, value in later])
        everyone = gathered((*mine, this.logged.parts()))
        logged = over_ranks([one[4] for one in everyone], self._settle_logged(run, [one[3] for one in everyone]))
        if this.training:
            clock, seen = run.clock, [sum(one[2][place] for one in everyone) for place in range(2)]
            clock.samples += seen[0] - this.counted[0]
            clock.tokens += seen[1] - this.counted[1]
        weight = sum(one[1] for one in everyone)
        total = sum(one[0] for one in everyone)
        return (torch.tensor(total / weight, dtype=torch.float64) if weight else None), logged

    def end_pass(self, run: Run) -> None:
        self.share_values(run)
        self.agreement.forget("end_epoch")

    def end_epoch(self, run: Run) -> list[Granted]:
        self.share_values(run)
        granted = self.settle(run)
        self.agreement.forget("skip_validation")
        return granted

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
        who = run.caller
        if who is not None and who.ranks != "all":
            raise RuntimeError(f"{who.name} logs {name!r} over all ranks, but plays only on some of them")
        numbers = gathered(float(value))
        return float(sum(numbers)) / len(numbers)

    def _settle_logged(self, run: Run, everyone: list[list[tuple[str, int, float]]]) -> dict[str, float]:
        """Writes the means over the processes into the rows of their iterations; returns the last one of each name."""
        found: dict[tuple[str, int], list[float]] = {}
        for name, key, value in (entry for one in everyone for entry in one):
            found.setdefault((name, key), []).append(value)
        means = {place: sum(values) / len(values) for place, values in found.items()}
        for row, name, key in self._later:
            if (name, key) in means:
                row[name] = run.metrics[name] = means[name, key]
        self._later.clear()
        return {name: means[name, key] for name, key in sorted(means)}

    def share_values(self, run: Run) -> None:
        """What rank 0 logged for this pass or epoch is what all have."""
        if values := from_main(run.open_row):
            run.log(values)

    # Recorded steps -------------------------------------------------------------------------------------------------

    def reduce_apart(self, run: Run) -> None:
        run.training_state.strategy.reduce_apart(run, self)

    def reduce_along(self, run: Run) -> None:
        run.training_state.strategy.reduce_along(self)

    # Failures -------------------------------------------------------------------------------------------------------

    def follow(self, run: Run) -> None:
        """From here on ``run`` is the one that is told of and interrupted."""
        if self.lifeline.failure is not None:
            raise Parted(self.lifeline.failure)
        self._run = weakref.ref(run)
        run.train_with(self)  # what fails from here on is told to the others
        self._standing = Standing(run, self.world.rank)
        self.lifeline.on_failure, self.lifeline.where = self._standing.interrupt, self._standing.where
        self._later, self.holds, self.synced = [], None, True

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

    def places(self) -> dict[int, str]:
        return self.lifeline.places()

    def rest(self) -> None:
        self.lifeline.rest()

    def end(self) -> None:
        """The run is over: nothing can interrupt it any more."""
        self._standing.end()
