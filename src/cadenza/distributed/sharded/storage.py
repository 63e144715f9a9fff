"""Where ``torch.distributed.checkpoint`` finds and leaves chunks of tensors: in the parts of our checkpoints.

Its planners say which process stores and reads which chunk. What lies in the folder is ours: safetensors files and
JSON, checked against the manifest. Nothing is unpickled.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from cadenza.checkpoint.format.chunks import Chunk, Spread
from cadenza.checkpoint.format.layout import TYPES
from cadenza.checkpoint.format.manifest import Manifest
from cadenza.checkpoint.format.reading import box, chunk_of, read_state
from cadenza.checkpoint.multi_process import part_of
from cadenza.checkpoint.staging import Store


class ShardWriter(StorageWriter):
    """Notes the chunks that this process is to store in ``shard``; on rank 0 where all of them will be, in ``chunks``.

    They are not written here: the one who saves copies them to main memory first, and writes in the background.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.shard: dict[str, Tensor] = {}
        self.chunks: dict[str, list[Chunk]] = {}

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        self.shard, self.chunks = {}, {}

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = []
        for item in plan.items:
            data: Any = planner.resolve_data(item)
            size = data.numel() * data.element_size()
            if size:
                self.shard[item.index.fqn] = data.detach()
                results.append(WriteResult(item.index, size, (part_of(self.rank), tuple(data.shape))))
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        for result in (one for each in results for one in each):
            part, sizes = result.storage_data
            offsets = tuple(result.index.offset or (0,) * len(sizes))
            self.chunks.setdefault(result.index.fqn, []).append(Chunk(part, offsets, sizes))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return True


class ShardReader(StorageReader):
    """Reads the chunks that this process needs of ``spread`` from the folder of a committed checkpoint."""

    def __init__(self, store: Store, manifest: Manifest, spread: dict[str, Spread]) -> None:
        self.store, self.manifest, self.spread = store, manifest, spread

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata({name: _described(spread) for name, spread in self.spread.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted: dict[str, list[tuple[Chunk, Any]]] = {}
        for item in plan.items:
            chunk = self._chunk(item.storage_index)
            wanted.setdefault(chunk.part, []).append((chunk, item))
        for part, items in wanted.items():  # one part in memory at a time
            held = read_state(self.store, self.manifest, self.manifest.folder, part, apart=True)
            for chunk, item in items:
                values = chunk_of(held, item.storage_index.fqn, chunk, part)
                target = planner.resolve_tensor(item).detach()
                target.copy_(box(values, item.storage_offsets, item.lengths))
                planner.commit_tensor(item, target)
        return _done(None)

    def _chunk(self, index: MetadataIndex) -> Chunk:
        offsets = tuple(index.offset or ())
        return next(chunk for chunk in self.spread[index.fqn].chunks if chunk.offsets == offsets)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return True


def _described(spread: Spread) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in spread.chunks]
    return TensorStorageMetadata(TensorProperties(dtype=TYPES[spread.dtype]), torch.Size(spread.shape), chunks)


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
