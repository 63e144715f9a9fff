"""The state of all processes: put together on rank 0 for a checkpoint, and handed out from one that rank 0 read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

from cadenza.distributed.agreement.collectives import from_main
from cadenza.distributed.strategies.dtensor import holds_spread, made_whole, stays_spread
from cadenza.foundation.tree import map_tree, with_notes
from cadenza.resume.per_rank import compared, own_part, part_for, saved_size, shared, taken_by, warn_of_move, with_part

if TYPE_CHECKING:
    from cadenza.distributed.agreement.process_group import ProcessGroup
    from cadenza.run import Run

_WHOLE = ("model", "criterion", "optimizers", "gradients")


def collected(ensemble: ProcessGroup, run: Run, state: dict[str, Any]) -> dict[str, Any]:
    """On rank 0 its state with what the other processes have of their own; of a model that is spread, the whole.

    What differs is found by comparing short texts, so that what is the same everywhere is not sent.
    """
    main = ensemble.world.is_main
    buffers = {name for name, _ in run.module.named_buffers()} & state["model"].keys()
    mine = compared(state, buffers)
    theirs = from_main(mine)
    parts: list[Any] | None = [None] * ensemble.world.world_size if main else None
    dist.gather_object(None if main else own_part(state, mine, theirs), parts, dst=0)
    left = stays_spread if ensemble.crew is not None else None
    for name in _WHOLE:
        state[name] = made_whole(state[name], keep=main, left=left)
    for callback in run.callbacks:
        if callback.name in state["callbacks"] and holds_spread(state["callbacks"][callback.name]):
            if callback.ranks != "all":
                raise TypeError(f"{callback.name} keeps weights that are spread over all ranks, but is not on all")
            state["callbacks"][callback.name] = made_whole(state["callbacks"][callback.name], keep=main, left=left)
    return {**state, "ranks": parts} if main else state


# Handing out --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Handed:
    """A checkpoint that rank 0 read, as one process is to take it."""

    state: dict[str, Any]
    name: str


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor in a tree that is sent without its tensors."""

    number: int


def hand_out(ensemble: ProcessGroup, look: Callable[..., Any]) -> Handed | None:
    """Rank 0 looks for a checkpoint, and all get what it found; if it fails, all do. The store is read once; of a model
    that is spread what lies in parts is left there, and each process reads its own later."""
    found, parts = _found_by_main(ensemble, look)
    name = from_main(None if found is None else found.name)
    if name is None:
        return None
    common = None
    if found is not None:
        if saved_size(found.state) != ensemble.world.world_size:
            warn_of_move(found.state, ensemble.world.world_size)
        common = shared(found.state)
        if ensemble.crew is not None and _sharding().in_parts(common):
            common["shards"] = (found.shelf, found.name)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, parts, src=0)
    return Handed(with_part(tree_from_main(common, ensemble.place), mine[0]), name)


def _found_by_main(ensemble: ProcessGroup, look: Callable[..., Any]) -> tuple[Any, list[Any] | None]:
    """On rank 0 the checkpoint, if there is one, and the part of each process; an error on all if it fails there."""
    size, found, problem, parts = ensemble.world.world_size, None, None, None
    if ensemble.world.is_main:
        try:
            found = look() if ensemble.crew is None else _looked_together(look)
            if found is not None:
                parts = [part_for(found.state, rank, size) for rank in range(size)]
        except Exception as error:
            problem = error
    elif ensemble.crew is not None:
        _sharding().compare_for_main()
    said = from_main(None if problem is None else f"{type(problem).__name__}: {problem}")
    if problem is not None:
        raise problem
    if said is not None:
        raise RuntimeError(f"rank 0 could not read the checkpoint: {said}")
    return found, parts


def _looked_together(look: Callable[..., Any]) -> Any:
    return _sharding().look_together(lambda apart: look(apart=apart))


def _sharding() -> Any:
    from cadenza.distributed.sharded import sharding

    return sharding


def taken_alone(found: Any) -> Any:
    """What a single process takes of a checkpoint that many wrote; of its own it takes all."""
    if found is None or saved_size(found.state) == 1:
        return found
    warn_of_move(found.state, 1)
    return Handed(taken_by(found.state, 0, 1), found.name)


def tree_from_main(tree: Any, place: torch.device) -> Any:
    """Rank 0's tree on all ranks; its tensors are sent one by one, as they are in memory."""
    tensors: list[Tensor] = []

    def place_of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        tensors.append(leaf)
        return _Place(len(tensors) - 1)

    bare = map_tree(tree, place_of, rebuild=with_notes)
    forms = [(tensor.dtype, tuple(tensor.shape), tensor.stride()) for tensor in tensors]
    bare, forms = from_main((bare, forms))
    main = dist.get_rank() == 0
    if not main:
        tensors = [torch.empty_strided(shape, stride, dtype=dtype) for dtype, shape, stride in forms]
    for tensor in tensors:
        if tensor.numel():
            flat = tensor.contiguous().reshape(-1).view(torch.uint8).to(place)
            dist.broadcast(flat, src=0)
            if not main:
                tensor.copy_(flat.cpu().view(tensor.dtype).view(tensor.shape))
    if main:
        return tree
    return map_tree(bare, lambda leaf: tensors[leaf.number] if isinstance(leaf, _Place) else leaf, rebuild=with_notes)
