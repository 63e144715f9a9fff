"""How the gradients of all processes become one: when, with which weights, and what goes along with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.distributed.agreement.collectives import NoCollectives, summed
from cadenza.distributed.strategies.piggyback import Ride
from cadenza.distributed.strategies.reduction import Buffers, Reduction, at_once
from cadenza.engine.processes import Processes
from cadenza.engine.stack import Outside, Pass
from cadenza.engine.state import UNWEIGHTED
from cadenza.execution.empty_round import backward_of_nothing, nothing

if TYPE_CHECKING:
    from cadenza.distributed.agreement.agreement import Agreement
    from cadenza.distributed.world import World
    from cadenza.run import Run


class Gradients(Processes):
    """The part of the process group that knows of gradients."""

    many = True

    world: World
    place: torch.device
    agreement: Agreement
    model: Any

    def __init__(self) -> None:
        self.ride: Ride | None = None
        self.reduction: Reduction | None = None
        """Puts gradients together after the backward, where steps are recorded; nothing rides along then."""
        self.buffers: Buffers | None = None
        self.empty = False
        self.synced = True
        self.holds: Callable[[], bool] | None = None
        """Says before a forward whether its gradients will be held for a later one."""
        self._asked_in_ride = False

    @property
    def reduces_apart(self) -> bool:  # type: ignore[override]
        return self.reduction is not None

    def hold_while(self, holds: Callable[[], bool] | None) -> None:
        self.holds = holds

    def syncs(self, run: Run) -> bool:
        """Whether the gradients of the coming backward are put together: not while they are held for a later one."""
        last = run.rounds is not None and run.batches_seen >= run.rounds
        holds = run.is_asked("hold_step") or (self.holds is not None and self.holds())
        self.synced = last or not holds
        return self.synced

    def refuse_passed_by(self, run: Run) -> None:
        """Before a backward: where the gradients are put together by what is called, it must have been called."""
        if getattr(self.model, "called", run.batches_seen) != run.batches_seen:
            raise RuntimeError(
                "the forward did not call run.model, which puts the gradients of all processes together, so they would "
                "drift apart: call run.model in it, not run.module or parts of it"
            )

    def carry(self, run: Run, loss: Tensor) -> Tensor:
        """``loss`` with what this process has to say."""
        if self.ride is None or not self.synced:
            return loss
        return self.ride.put_on(loss, *self._say(run))

    def after_backward(self, run: Run) -> None:
        if self.reduction is not None:
            if self.synced:
                self.reduction.reduce(lambda: self._say(run), lambda heard: self._hear(run, heard))
        elif self.ride is not None and (heard := self.ride.take_off()) is not None:
            self._hear(run, heard)

    def _say(self, run: Run) -> list[float]:
        """Whether this process asks for anything, and on rank 0 the time."""
        return [float(self.agreement.untold), run.clock.wall if self.world.is_main else 0.0]

    def _hear(self, run: Run, heard: list[float]) -> None:
        self._asked_in_ride = heard[0] > 0
        if heard[1]:  # it is 0 if the gradients are of a type that cannot carry it
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
        if samples and run.samples_of_all is not None:
            return run.samples_of_all / self.world.world_size
        if isinstance(count, Tensor):
            total = count.detach().clone()
            torch.distributed.all_reduce(total)
            return total / self.world.world_size
        return summed([count], self.place)[0] / self.world.world_size

    def settle_held(self, run: Run, this: Pass | Outside) -> None:
        """Before a step: gradients that were held for a batch that did not come are put together now."""
        if self.synced or not isinstance(this, Pass):
            return
        holds, self.empty, self.holds, self.synced = self.holds, True, None, True
        try:
            backward_of_nothing(run, this.last)
        finally:
            self.empty, self.holds, self.synced = False, holds, True

    def prepare(self, run: Run) -> None:
        """Before a step: does what the forward does not, since that may be recorded."""
        if self.buffers is not None and self.synced:
            self.buffers.share()
        if self.reduction is not None:
            self.syncs(run)  # a forward of the user's own need not call what would ask

    def has_even_share(self, run: Run) -> bool:
        """Whether this process has as many samples in this round as the others on average."""
        known = run.samples_of_all
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
