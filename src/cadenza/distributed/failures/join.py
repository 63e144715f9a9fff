"""How the processes meet: once, whoever brought them together and however many trainers there are."""

from __future__ import annotations

import functools
import gc
import os
import weakref
from typing import Any

import torch
from torch import distributed as dist

from cadenza.distributed.agreement.collectives import gathered
from cadenza.distributed.failures.failure_channel import Lifeline, NoChannel
from cadenza.distributed.failures.fork_safety import wait_before_forks
from cadenza.distributed.failures.sockets import Line, open_lines
from cadenza.distributed.world import World

_MANY = 64
_last: list[tuple[weakref.ref[Any], Lifeline]] = []
"""The process group that was there last, and the lifeline of this process in it. The group is not kept alive: its
threads end when its owner destroys it, and one that outlives the interpreter ends the process with an abort."""


def meet(world: World, device: torch.device, timeout: float, *, channel: bool = True) -> Lifeline:
    """Joins the others if that has not been done, and returns the lifeline that this process has with them. Without a
    ``channel`` they hear nothing of each other's failures."""
    world.join(device, timeout)
    wait_before_forks()
    if not channel:
        return NoChannel(world)
    _part_from_children()
    group = dist.group.WORLD
    if _last and _last[0][0]() is group:
        return _last[0][1]
    lifeline = Lifeline(world, lines_between_ranks(world))
    _last[:] = [(weakref.ref(group), lifeline)]
    return lifeline


@functools.cache
def _part_from_children() -> None:
    """From here on no child that is forked has a part in the lifeline."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forsake)


def _forsake() -> None:
    while _last:
        _last.pop()[1].forsake()


def rest() -> None:
    """Before this process ends with an error: nobody may still use a connection that closes with it."""
    for _, lifeline in _last:
        lifeline.rest()


def part() -> None:
    """This process goes its own way, and the others need not wonder."""
    while _last:
        _last.pop()[1].leave()
    if dist.is_initialized():
        # A model of a failed run may still hold the group. It goes first: whoever lets go of the group last waits for
        # its threads, and only torch's own way of ending it lets them have the interpreter meanwhile.
        gc.collect()
        dist.destroy_process_group()


def lines_between_ranks(world: World) -> set[Line]:
    """The connections of this process whose other end is another rank: gloo's. Those to the store stay out of it."""
    mine = {line for line in open_lines() if world.port not in (_end(line[1])[1], _end(line[2])[1])}
    if world.world_size > _MANY:
        return mine
    everyone = gathered([(_end(own), _end(other)) for _, own, other in mine])
    theirs = {(other, own) for rank, ends in enumerate(everyone) if rank != world.rank for own, other in ends}
    return {line for line in mine if (_end(line[1]), _end(line[2])) in theirs}


def _end(address: Any) -> tuple[str, int]:
    return str(address[0]).removeprefix("::ffff:"), int(address[1])
