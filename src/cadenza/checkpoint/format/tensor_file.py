"""Tensors in one file, in the safetensors format: a header in JSON, then the values one after the other.

Written and read in pieces, so that no second copy is made and a checksum can be taken on the way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from cadenza.checkpoint.format.layout import PLAIN, fill, raw

PIECE = 4 * 2**20
LONGEST_HEADER = 100 * 2**20


def pieces(tensors: Mapping[str, Tensor], note: Mapping[str, str] | None = None) -> Iterator[memoryview | bytes]:
    """The file that holds ``tensors``, which are contiguous and in main memory, piece by piece.

    >>> import safetensors.torch
    >>> data = b"".join(pieces({"bias": torch.ones(2)}))
    >>> safetensors.torch.load(data)
    {'bias': tensor([1., 1.])}
    """
    # The largest elements first, so that every tensor begins at a multiple of its element's size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(note)} if note else {}
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        dtype, shape = _told(tensor)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        view = raw(tensors[name])
        for start in range(0, len(view), PIECE):
            yield view[start : start + PIECE]


def _told(tensor: Tensor) -> tuple[str, list[int]]:
    """Type and shape as other readers of the file see them."""
    if tensor.dtype in PLAIN:
        return PLAIN[tensor.dtype], list(tensor.shape)
    if tensor.dtype is torch.complex128:
        return "F64", [*tensor.shape, 2]
    return "U8", [tensor.numel() * tensor.element_size()]


Into = Callable[[memoryview], None]
"""Fills the given part of memory with the next bytes of a file, or raises."""


def read_header(read: Into, size: int) -> dict[str, Any]:
    """The header of a file of ``size`` bytes, from its beginning. The values follow in the order of their offsets."""
    length = bytearray(8)
    read(memoryview(length))
    count = int.from_bytes(length, "little")
    if count > min(size - 8, LONGEST_HEADER):
        raise ValueError("its header is longer than the file")
    text = bytearray(count)
    read(memoryview(text))
    header = json.loads(text.decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    end = 0
    for name, entry in _in_order(header):
        start, stop = entry["data_offsets"]
        if start != end or type(stop) is not int or stop < start:
            raise ValueError(f"the values of {name} do not begin where those before them end")
        end = stop
    if 8 + count + end != size:
        raise ValueError(f"its header speaks of {8 + count + end} bytes, but it has {size}")
    return header


def _in_order(header: Mapping[str, Any]) -> list[tuple[str, Any]]:
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    return sorted(entries, key=lambda item: item[1]["data_offsets"])


def read_values(read: Into, header: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> None:
    """Reads on after the header, and fills each tensor in ``wanted`` with the values of its name."""
    if missing := wanted.keys() - header.keys():
        raise ValueError(f"it does not hold {min(missing)}")
    for name, entry in _in_order(header):
        start, stop = entry["data_offsets"]
        tensor = wanted.get(name)
        if tensor is None:
            _pass_over(read, stop - start)
            continue
        if stop - start != tensor.numel() * tensor.element_size():
            raise ValueError(f"{name} has {stop - start} bytes, which do not make the shape {list(tensor.shape)}")
        values = tensor if tensor.is_contiguous() else torch.empty(tensor.shape, dtype=tensor.dtype)
        view = raw(values)
        for begin in range(0, len(view), PIECE):
            read(view[begin : begin + PIECE])
        if values is not tensor:
            fill(tensor, values)


def _pass_over(read: Into, count: int) -> None:
    buffer = memoryview(bytearray(min(count, PIECE)))
    for begin in range(0, count, PIECE):
        read(buffer[: min(PIECE, count - begin)])


def plain_tensors(header: Mapping[str, Any]) -> dict[str, Tensor]:
    """Empty tensors for all that a file holds by its own header, whoever wrote it."""
    types = {name: dtype for dtype, name in PLAIN.items()}
    made: dict[str, Tensor] = {}
    for name, entry in _in_order(header):
        start, stop = entry["data_offsets"]
        if entry["dtype"] not in types:
            raise ValueError(f"{name} has the type {entry['dtype']}, which this version cannot read")
        dtype = types[entry["dtype"]]
        if math.prod(entry["shape"]) * dtype.itemsize != stop - start:
            raise ValueError(f"{name} has {stop - start} bytes, which do not make the shape {entry['shape']}")
        made[name] = torch.empty(entry["shape"], dtype=dtype)
    return made
