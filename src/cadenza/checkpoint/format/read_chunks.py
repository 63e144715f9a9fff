"""Reading what several processes stored together: every chunk goes to its place in a whole tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from cadenza.checkpoint.format.chunks import Chunk, Spread
from cadenza.checkpoint.format.layout import TYPES

SHARDS = "shards"
"""Under this name the state of a part holds its chunks."""


class Pending:
    """Whole tensors for what was spread, made while a state is decoded and filled when all are known."""

    def __init__(self) -> None:
        self.tensors: list[tuple[Spread, Tensor]] = []

    def make(self, record: Mapping[str, Any]) -> Tensor:
        spread = Spread.of(record)
        tensor = torch.empty(spread.shape, dtype=TYPES[spread.dtype])
        self.tensors.append((spread, tensor))
        return tensor

    def fill(self, read: Callable[[str], dict[str, Any]]) -> None:
        """Reads each part once; ``read(part)`` answers with its state, verified."""
        wanted: dict[str, list[tuple[Spread, Chunk, Tensor]]] = {}
        for spread, tensor in self.tensors:
            for chunk in spread.chunks:
                wanted.setdefault(chunk.part, []).append((spread, chunk, tensor))
        for part, chunks in wanted.items():
            held = read(part)
            for spread, chunk, tensor in chunks:
                box(tensor, chunk.offsets, chunk.sizes).copy_(chunk_of(held, spread.name, chunk, part))


def chunk_of(held: Mapping[str, Any], name: str, chunk: Chunk, part: str) -> Tensor:
    """The values of ``chunk`` in the state of its part."""
    values = held.get(SHARDS, {}).get(name)
    if not isinstance(values, Tensor) or tuple(values.shape) != chunk.sizes:
        raise ValueError(f"{part} does not hold its chunk of {name}")
    return values


def box(tensor: Tensor, offsets: Iterable[int], sizes: Iterable[int]) -> Tensor:
    """The part of ``tensor`` that begins at ``offsets`` and is so large.

    >>> box(torch.arange(6).view(3, 2), (1, 0), (2, 1))
    tensor([[2],
            [4]])
    """
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor
