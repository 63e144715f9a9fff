"""States whose large tensors stay where they are: each process stores and reads its own chunks of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import empty as empty_spread

from cadenza.checkpoint.format.chunks import Spread
from cadenza.checkpoint.format.json_state import spell
from cadenza.checkpoint.format.layout import TYPES
from cadenza.checkpoint.format.manifest import Manifest
from cadenza.checkpoint.format.reading import parts_of, read_manifest, verify
from cadenza.checkpoint.problems import Damaged
from cadenza.checkpoint.store import Apart, Shelf
from cadenza.distributed.agreement.collectives import from_main, gathered
from cadenza.distributed.sharded.storage import ShardReader, ShardWriter
from cadenza.distributed.strategies.dtensor import holds, is_spread, replaced, stays_spread

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from cadenza.checkpoint.staging import Store
    from cadenza.run import Run


def in_parts(tree: Any) -> bool:
    """Whether something in ``tree`` lies in the parts of a checkpoint."""
    return holds(tree, lambda value: isinstance(value, Spread))


def taken_apart(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """``state`` with a ``Spread`` for each tensor that is spread, complete on rank 0, and the chunks that this process
    is to store. All processes must call this."""
    found: dict[str, Any] = {}
    leaves: dict[str, Spread] = {}

    def note(tensor: Any, path: tuple[Any, ...]) -> Spread:
        name = spell(path)
        while name in found:
            name += "'"
        found[name] = tensor.detach()
        dtype = str(tensor.dtype).removeprefix("torch.")
        leaves[name] = Spread(name, dtype, tuple(tensor.shape), getattr(tensor.placements[0], "dim", None))
        return leaves[name]

    tree = replaced(state, stays_spread, note)
    writer = ShardWriter(dist.get_rank())
    save(found, storage_writer=writer, planner=DefaultSavePlanner(False, False))
    if dist.get_rank() == 0:
        complete = {
            name: Spread(leaf.name, leaf.dtype, leaf.shape, leaf.dim, tuple(writer.chunks.get(name, ())))
            for name, leaf in leaves.items()
        }
        tree = replaced(tree, lambda leaf: isinstance(leaf, Spread), lambda leaf, path: complete[leaf.name])
    return tree, writer.shard


def put_back(run: Run, state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with tensors that are spread over the processes of now, each with its chunks read from the store."""
    place, folder = state["shards"]
    found: dict[str, Any] = {}
    leaves: dict[str, Spread] = {}
    mesh = next(p.device_mesh for p in run.module.parameters() if is_spread(p))  # type: ignore[attr-defined]

    def make(leaf: Spread, path: tuple[Any, ...]) -> Any:
        leaves[leaf.name] = leaf
        found[leaf.name] = _empty(leaf, mesh, run.module)
        return found[leaf.name]

    tree = replaced(state, lambda leaf: isinstance(leaf, Spread), make)
    store = Shelf(place).store
    reader = ShardReader(store, read_manifest(store, folder), leaves)
    with torch.no_grad():
        load(found, storage_reader=reader, planner=DefaultLoadPlanner(False, False))
    return {name: value for name, value in tree.items() if name != "shards"}


def _empty(leaf: Spread, mesh: DeviceMesh, module: torch.nn.Module) -> Tensor:
    placement = Replicate() if leaf.dim is None else Shard(leaf.dim)
    made = empty_spread(leaf.shape, dtype=TYPES[leaf.dtype], device_mesh=mesh, placements=[placement])
    offloaded = all(parameter.device.type == "cpu" for parameter in module.parameters())
    return made.cpu() if offloaded and made.device.type != "cpu" else made


# Looking for a checkpoint whose parts are all whole -----------------------------------------------------------------


def look_together(look: Callable[[Apart], Any]) -> Any:
    """On rank 0: what ``look`` finds, after the processes have compared the parts of it, each some of the files.
    Meanwhile the others call ``compare_for_main``."""

    def compare(store: Store, manifest: Manifest) -> None:
        from_main((str(store), manifest.folder))
        problems = [one for one in gathered(_problem(store, manifest)) if one is not None]
        for damaged, reason in sorted(problems):  # what cannot be reached is not to be set aside
            raise Damaged(manifest.folder, reason) if damaged else RuntimeError(reason)

    try:
        return look(compare)
    finally:
        from_main(None)


def compare_for_main() -> None:
    """On the other ranks: compares what rank 0 asks for until it has found what it looks for."""
    while (asked := from_main(None)) is not None:
        place, folder = asked
        try:
            store = Shelf(place).store
            manifest = read_manifest(store, folder)
        except Exception as error:
            gathered(
                (False, f"rank {dist.get_rank()} cannot read the checkpoint that rank 0 found in {place}: {error}")
            )
        else:
            gathered(_problem(store, manifest))


def _problem(store: Store, manifest: Manifest) -> tuple[bool, str] | None:
    """Whether this process's share of the parts is damaged or out of reach, and why; None if all is well."""
    mine = parts_of(manifest)[dist.get_rank() :: dist.get_world_size()]
    try:
        verify(store, manifest, manifest.folder, mine)
    except Damaged as error:
        return True, error.reason
    except Exception as error:
        return False, f"rank {dist.get_rank()} cannot read its share of {manifest.folder} in {store}: {error}"
    return None
