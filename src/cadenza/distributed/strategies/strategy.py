"""How a model is spread over processes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cadenza.distributed.agreement.collectives import guarded
from cadenza.distributed.agreement.compare_setup import compare, noting_who_left
from cadenza.distributed.agreement.process_group import ProcessGroup
from cadenza.distributed.failures.join import meet
from cadenza.distributed.sharded.all_ranks import hand_out, taken_alone
from cadenza.distributed.sharded.commit import Crew
from cadenza.distributed.world import World
from cadenza.engine.dispatch import with_caller
from cadenza.engine.processes import ALONE, Processes

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.engine.trainer_state import Training
    from cadenza.run import Run


log = logging.getLogger("cadenza")


class Strategy:
    """One process: the model is called as it is."""

    name = "single"
    lockstep = False
    sharded = False
    timeout = 1800.0
    debug: bool | None = None
    failure_channel = True

    def world(self) -> World:
        """The processes that take part."""
        return World()

    def played(self, callback: Callback, player: Callable[[Run], Any]) -> Callable[[Run], Any]:
        """``player`` as it is called under many processes."""
        return player

    def begin(self, run: Run) -> Processes:
        """Called when a run begins and the module is on its device; sets ``run.model``."""
        return ALONE

    def found(self, run: Run, callbacks: Sequence[Callback], look: Callable[..., Any]) -> Any:
        """The checkpoint that ``look`` finds, as this process is to take it; None if there is none."""
        return taken_alone(look())

    def taken(self, run: Run, state: dict[str, Any]) -> dict[str, Any]:
        """``state`` as the module and the optimizers of ``run`` can load it."""
        return state

    def refresh(self, run: Run, ensemble: ProcessGroup) -> None:
        """Called when a training pass begins: other parameters may be trained than before."""

    def why_not_recorded(self, run: Run, mode: str) -> str | None:
        """Why steps cannot be recorded under this strategy, if so."""
        return None

    def reduce_apart(self, run: Run, ensemble: ProcessGroup) -> None:
        """From here on the processes talk between two parts of a step that can be recorded, and not in them."""

    def reduce_along(self, ensemble: ProcessGroup) -> None:
        """Takes ``reduce_apart`` back, for the runs to come."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Together(Strategy):
    """What the strategies for many processes share: they meet once, and each run joins what is there."""

    def world(self) -> World:
        return World.detect()

    def played(self, callback: Callback, player: Callable[[Run], Any]) -> Callable[[Run], Any]:
        """Notes who plays, since a request is agreed on by the rule of who asks."""
        debug = bool(os.environ.get("CADENZA_DEBUG")) if self.debug is None else self.debug
        called = guarded(callback, player) if debug and callback.ranks != "all" else player

        return with_caller(callback, called)

    def begin(self, run: Run) -> Processes:
        if run.training_state.world.alone:
            return ALONE
        with noting_who_left(run):
            ensemble = self.ensemble(run.training_state)
            ensemble.follow(run)
            refuse_wrapped(run.module)
            run.clock.agreed = compare(run, run.plan.given, ensemble.place)
        self.spread(run, ensemble)
        return ensemble

    def ensemble(self, training: Training) -> ProcessGroup:
        """The processes, which meet when this is first asked for."""
        if training.processes is None:
            lifeline = meet(cast(World, training.world), training.device, self.timeout, channel=self.failure_channel)
            training.processes = ProcessGroup(lifeline, training.device, debug=self.debug, lockstep=self.lockstep)
            training.processes.crew = Crew(lifeline, self.timeout) if self.sharded else None
        return cast(ProcessGroup, training.processes)

    def found(self, run: Run, callbacks: Sequence[Callback], look: Callable[..., Any]) -> Any:
        if run.training_state.world.alone:
            return taken_alone(look())
        with noting_who_left(run):
            ensemble = self.ensemble(run.training_state)
            compare(run, callbacks, ensemble.place)
        return hand_out(ensemble, look)

    def why_not_recorded(self, run: Run, mode: str) -> str | None:
        if run.world_size == 1:
            return None
        return f"{run.world_size} processes train together, and what they tell each other is not recorded"

    def spread(self, run: Run, ensemble: ProcessGroup) -> None:
        """Makes ``run.model`` of ``run.module``, or takes what an earlier run made."""
        raise NotImplementedError  # pragma: no cover


def same_everywhere(module: nn.Module) -> None:
    """Rank 0's parameters and buffers on all ranks."""
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)


def refuse_wrapped(module: nn.Module) -> None:
    if isinstance(module, nn.DataParallel | DistributedDataParallel):
        raise TypeError(
            f"the model is wrapped in {type(module).__name__} already: give the Trainer the plain module, and "
            'strategy="ddp" wraps it'
        )


def trained(module: nn.Module) -> tuple[bool, ...]:
    """Which parameters are trained, to notice when that changes."""
    return tuple(parameter.requires_grad for parameter in module.parameters())


def on_cuda(device: torch.device) -> list[int] | None:
    return [device.index or 0] if device.type == "cuda" else None
