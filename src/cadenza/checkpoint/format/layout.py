"""How tensors lie in memory: which share it, and with which strides. A checkpoint brings both back."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cadenza.checkpoint.format.json_state import Path, a, spell
from cadenza.checkpoint.problems import NotState

PLAIN = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
}
"""The types that a safetensors file has a name for."""
AS_BYTES = (torch.complex128, torch.complex32, torch.float4_e2m1fn_x2)
"""Those it has none for: their bytes are stored, and the checkpoint knows what they are."""
TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (*PLAIN, *AS_BYTES)}
ALIGNMENT = 16
"""No element is larger, so that offsets counted from a multiple of it stay whole numbers of elements."""


@dataclass
class Entry:
    """One tensor to store: its values are written once, under ``name`` in ``file``."""

    name: str
    file: str
    tensor: Tensor
    shared: tuple[int, int] | None = None
    """The number of the memory that it shares with others, and at which byte of it it begins."""

    @property
    def size(self) -> int:
        """How many bytes its values have."""
        return self.tensor.numel() * self.tensor.element_size()

    def record(self) -> dict[str, Any]:
        """What is needed to make it again from its values."""
        tensor = self.tensor
        shape, stride = list(tensor.shape), list(tensor.stride())
        record: dict[str, Any] = {"name": self.name, "file": self.file, "shape": shape}
        record["dtype"] = str(tensor.dtype).removeprefix("torch.")
        if stride != contiguous(shape) and (self.shared or is_dense(shape, stride)):
            record["stride"] = stride
        if self.shared:
            record["shared"] = list(self.shared)
        return record


@dataclass
class Catalogue:
    """Collects the tensors of a state. The same part of memory is stored once, whoever names it."""

    entries: list[Entry] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    """Names of weights that are stored under another one."""
    _numbers: dict[Any, int] = field(default_factory=dict)
    _names: set[tuple[str, str]] = field(default_factory=set)

    def add(self, tensor: Tensor, path: Path) -> int:
        """The number of ``tensor``, which is kept as it is now: it is not copied yet."""
        tensor = checked(tensor, path)
        file, parts = ("model", path[1:]) if path[0] == "model" and len(path) > 1 else ("state", path)
        name = spell(parts)
        key = (_memory(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and key in self._numbers:
            entry = self.entries[self._numbers[key]]
            if file == "model":
                self.aliases[name] = entry.name
            return self._numbers[key]
        while (file, name) in self._names or name == "__metadata__":
            name += "'"
        self._names.add((file, name))
        self._numbers[key] = len(self.entries)
        self.entries.append(Entry(name, file, tensor))
        return len(self.entries) - 1

    def share(self) -> list[int]:
        """Notes who shares memory with whom; returns how many bytes each such memory needs."""
        owners: dict[Any, list[Entry]] = {}
        for entry in self.entries:
            if entry.tensor.numel():
                owners.setdefault(_memory(entry.tensor), []).append(entry)
        sizes: list[int] = []
        for together in owners.values():
            if len(together) > 1:
                spans = [span(entry.tensor) for entry in together]
                start = min(first for first, _ in spans) // ALIGNMENT * ALIGNMENT
                for entry, (first, _) in zip(together, spans, strict=True):
                    entry.shared = (len(sizes), first - start)
                sizes.append(max(last for _, last in spans) - start)
        return sizes


def checked(tensor: Tensor, path: Path) -> Tensor:
    """``tensor`` without its graph, if its values can be stored; else says why not."""
    kind = type(tensor)
    if kind is not Tensor and kind is not nn.Parameter:
        raise NotState(f"{spell(path)} is {a(tensor)}; a state holds plain tensors: gather or convert it first")
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type == "meta":
        what = "without values" if tensor.device.type == "meta" else f"with the layout {tensor.layout}"
        raise NotState(f"{spell(path)} is a tensor {what}; a state holds plain tensors: convert it first")
    if tensor.dtype not in TYPES.values():
        raise NotState(f"{spell(path)} is a tensor of {tensor.dtype}, which cannot be stored: convert it first")
    plain = tensor.detach()
    return plain.resolve_conj().resolve_neg() if plain.is_conj() or plain.is_neg() else plain


def _memory(tensor: Tensor) -> tuple[torch.device, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()


def span(tensor: Tensor) -> tuple[int, int]:
    """The first byte of its memory that ``tensor`` uses, and the one after the last."""
    size = tensor.element_size()
    first = int(tensor.storage_offset())
    return first * size, (first + reach(tensor.shape, tensor.stride())) * size


def reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements lie between the first and the last, both included.

    >>> reach((2, 3), (3, 1)), reach((2, 3), (1, 10)), reach((0, 3), (3, 1))
    (6, 22, 0)
    """
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements fill their memory without gaps, in any order, some perhaps shown again and again.

    >>> is_dense((2, 3), (1, 2)), is_dense((4, 3), (0, 1)), is_dense((2, 3), (6, 2))
    (True, True, False)
    """
    if 0 in shape:
        return True
    expected = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1 and step != 0:
            if step != expected:
                return False
            expected *= size
    return True


class Memory:
    """Makes the tensors of a checkpoint again from their records; refuses records that reach out of their memory."""

    def __init__(self, shared: Sequence[int]) -> None:
        if not all(type(size) is int and size >= 0 for size in shared):
            raise ValueError("the sizes of shared memory are no sizes")
        self._memories = [torch.zeros(size, dtype=torch.uint8) for size in shared]

    def make(self, record: Mapping[str, Any]) -> Tensor:
        """A tensor without values of the shape, the strides and in the memory that ``record`` names."""
        shape, dtype = record["shape"], TYPES[record["dtype"]]
        stride = record.get("stride")
        numbers = [*shape, *(stride or ())]
        if not all(type(number) is int and number >= 0 for number in numbers) or len(stride or shape) != len(shape):
            raise ValueError(f"{record['name']} has no possible shape")
        if "shared" not in record:
            if stride is None:
                return torch.empty(shape, dtype=dtype)
            if not is_dense(shape, stride):
                raise ValueError(f"the strides of {record['name']} leave gaps")
            return torch.empty_strided(shape, stride, dtype=dtype)
        number, offset = record["shared"]
        stride = stride or contiguous(shape)
        size = dtype.itemsize
        memory = self._memories[number]
        if number < 0 or offset < 0 or offset % size or offset + reach(shape, stride) * size > memory.numel():
            raise ValueError(f"{record['name']} reaches out of its memory")
        return torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), offset // size, shape, stride)


def contiguous(shape: Sequence[int]) -> list[int]:
    """The strides of a tensor that lies row by row."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def fill(tensor: Tensor, values: Tensor) -> None:
    """Writes ``values`` into ``tensor``; an element that is shown many times is written once."""
    for dim, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and step == 0:
            tensor, values = tensor.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    tensor.copy_(values)


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in main memory, without a copy."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    array = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    array.tensor = tensor  # type: ignore[attr-defined]  # it lives as long as somebody looks at its bytes
    return memoryview(array).cast("B")
