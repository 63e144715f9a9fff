"""Tensors that several processes store together: each writes its chunk, and the checkpoint says who has which."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor: where it begins, how large it is, and the part of the checkpoint that holds it."""

    part: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Spread:
    """Stands for a tensor whose values lie in parts. ``dim`` is the one along which it was cut, None if it was not.

    >>> Spread("model.weight", "float32", (4, 2), 0, (Chunk("shard-0", (0, 0), (4, 2)),)).record()["chunks"]
    [['shard-0', [0, 0], [4, 2]]]
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    dim: int | None
    chunks: tuple[Chunk, ...] = ()

    def record(self) -> dict[str, Any]:
        """As plain JSON."""
        chunks = [[chunk.part, list(chunk.offsets), list(chunk.sizes)] for chunk in self.chunks]
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "dim": self.dim, "chunks": chunks}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Spread:
        """What a record says, if that is possible: the chunks lie inside the tensor and fill it."""
        name, shape, dim = record["name"], _numbers(record["shape"]), record["dim"]
        chunks = tuple(Chunk(part, _numbers(offsets), _numbers(sizes)) for part, offsets, sizes in record["chunks"])
        for chunk in chunks:
            if not len(chunk.offsets) == len(chunk.sizes) == len(shape) or not all(map(_fits, *_boxes(chunk, shape))):
                raise ValueError(f"a chunk of {name} lies outside of it")
        if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(shape):
            raise ValueError(f"the chunks of {name} do not fill it")
        if not (dim is None or (type(dim) is int and 0 <= dim < len(shape))):
            raise ValueError(f"{name} was cut along no possible dimension")
        return cls(str(name), record["dtype"], shape, dim, chunks)


def _numbers(given: Iterable[Any]) -> tuple[int, ...]:
    numbers = tuple(given)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"{numbers} are no sizes")
    return numbers


def _boxes(chunk: Chunk, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return chunk.offsets, chunk.sizes, shape


def _fits(offset: int, size: int, whole: int) -> bool:
    return offset + size <= whole
