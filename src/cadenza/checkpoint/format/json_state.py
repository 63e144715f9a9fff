"""State as JSON: nested plain data, with numbers in the place of tensors.

What JSON has no word for is an object with the key ``"$"``, which says what it is. Whatever is read, only the kinds in
this file are made: no name in a file is ever looked up and called.
"""

from __future__ import annotations

import base64
import math
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from cadenza.checkpoint.format.chunks import Spread
from cadenza.checkpoint.problems import NotState
from cadenza.foundation.torch_private import set_versions, versions_in

Path = tuple[str | int, ...]
Keep = Callable[[Tensor, Path], int]
DEEPEST = 100
LONG = 64
"""Lists of numbers from this length on are stored as tensors: a long history costs next to nothing then."""
ALLOWED = "state is tensors, numbers, text, bytes, None, and dicts, lists and tuples of these"


def encode(value: Any, path: Path, keep: Keep, *, long: int = LONG) -> Any:
    """``value`` as plain JSON. ``keep(tensor, path)`` takes each tensor and answers with its number.

    >>> encode({"lr": 0.1, "betas": (0.9, 0.999)}, (), lambda tensor, path: 0)
    {'lr': 0.1, 'betas': {'$': 'tuple', 'value': [0.9, 0.999]}}
    """
    return _Encoder(keep, long).node(value, path)


class _Encoder:
    def __init__(self, keep: Keep, long: int) -> None:
        self.keep, self.long = keep, long
        self.open: set[int] = set()

    def node(self, value: Any, path: Path) -> Any:
        kind = type(value)
        if kind in (bool, str, NoneType):
            return value
        if kind is int:
            return value if abs(value) < 2**63 else {"$": "int", "value": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$": "float", "value": struct.pack(">d", value).hex()}
        if kind is bytes:
            return {"$": "bytes", "value": base64.b64encode(value).decode("ascii")}
        if isinstance(value, Tensor):
            return {"$": "tensor", "value": self.keep(value, path)}
        if kind in (dict, OrderedDict, list, tuple):
            return self.container(value, path)
        if kind is Spread:
            return {"$": "spread", "value": value.record()}
        if (numpy := sys.modules.get("numpy")) and (isinstance(value, numpy.generic) or kind is numpy.ndarray):
            return {"$": "scalar" if isinstance(value, numpy.generic) else "array", "value": self.array(value, path)}
        raise NotState(f"{spell(path)} is {a(value)}; {ALLOWED}")

    def container(self, value: Any, path: Path) -> Any:
        if id(value) in self.open:
            raise NotState(f"{spell(path)} contains itself; {ALLOWED}")
        if len(path) > DEEPEST:
            raise NotState(f"{spell(path[:3])}… is nested deeper than {DEEPEST} levels")
        self.open.add(id(value))
        try:
            if isinstance(value, dict):
                return self.mapping(value, path)
            column = self.column(value, path) if len(value) >= self.long else None
            items = column or [self.node(inner, (*path, index)) for index, inner in enumerate(value)]
            return items if type(value) is list else {"$": "tuple", "value": items}
        finally:
            self.open.discard(id(value))

    def column(self, value: Sequence[Any], path: Path) -> Any:
        """Many numbers of one kind as a tensor; None if they are something else."""
        kinds = set(map(type, value))
        if kinds == {float}:
            return {"$": "floats", "value": self.keep(torch.tensor(value, dtype=torch.float64), path)}
        if kinds == {int} and min(value) >= -(2**63) and max(value) < 2**63:
            return {"$": "ints", "value": self.keep(torch.tensor(value, dtype=torch.int64), path)}
        return None

    def mapping(self, value: dict[Any, Any], path: Path) -> Any:
        for key in value:
            if type(key) not in (str, int):
                raise NotState(f"{spell(path)} has the key {key!r}, {a(key)}; keys are text or whole numbers")
        metadata = versions_in(value)  # versions of the modules, which load_state_dict looks at
        if type(value) is dict and all(type(key) is str for key in value) and "$" not in value:
            return {key: self.node(inner, (*path, key)) for key, inner in value.items()}
        pairs = [[self.node(key, path), self.node(inner, (*path, key))] for key, inner in value.items()]
        if type(value) is dict:
            return {"$": "dict", "value": pairs}
        return {"$": "ordered", "value": pairs, "metadata": self.node(metadata, (*path, "_metadata"))}

    def array(self, value: Any, path: Path) -> int:
        """A NumPy array or scalar as a tensor, if there is one with the same bits."""
        numpy = sys.modules["numpy"]
        try:
            array = numpy.asarray(value)
            plain = array.flags.writeable and array.flags.aligned and min(array.strides, default=0) >= 0
            tensor = torch.from_numpy(array if plain else array.copy())
        except (TypeError, ValueError):
            detail = f"{a(value)} of the type {value.dtype}"
            raise NotState(f"{spell(path)} is {detail}, for which there is no tensor; {ALLOWED}") from None
        return self.keep(tensor, path)


def decode(node: Any, tensor: Callable[[int], Tensor], spread: Callable[[dict[str, Any]], Any] = Spread.of) -> Any:
    """What ``encode`` was given. ``tensor(number)`` answers with each tensor, ``spread(record)`` with what stands for
    one that lies in parts."""
    if isinstance(node, list):
        return [decode(inner, tensor, spread) for inner in node]
    if not isinstance(node, dict):
        return node
    if "$" not in node:
        return {key: decode(inner, tensor, spread) for key, inner in node.items()}
    kind, value = node["$"], node["value"]
    if kind in ("tensor", "array", "scalar", "floats", "ints"):
        return _from_tensor(kind, tensor(value))
    if kind == "tuple":
        return tuple(decode(value, tensor, spread))
    if kind in ("dict", "ordered"):
        pairs = [(decode(key, tensor), decode(inner, tensor, spread)) for key, inner in value]
        return dict(pairs) if kind == "dict" else _ordered(pairs, decode(node["metadata"], tensor))
    if kind == "spread":
        return spread(value)
    if kind == "int":
        return int(value, 16)
    if kind == "float":
        return struct.unpack(">d", bytes.fromhex(value))[0]
    if kind == "bytes":
        return base64.b64decode(value, validate=True)
    raise ValueError(f"there is no kind {kind!r} of state")


def _from_tensor(kind: str, tensor: Tensor) -> Any:
    if kind == "tensor":
        return tensor
    if kind in ("floats", "ints"):
        return tensor.tolist()
    array = tensor.numpy()  # needs NumPy, as what was saved did
    return array if kind == "array" else array[()]


def _ordered(pairs: list[tuple[Any, Any]], metadata: Any) -> OrderedDict[Any, Any]:
    made: OrderedDict[Any, Any] = OrderedDict(pairs)
    if metadata is not None:
        set_versions(made, metadata)
    return made


def spell(path: Path) -> str:
    """A path in a state as one reads it.

    >>> spell(("callbacks", "ema", 0, "decay"))
    'callbacks.ema.0.decay'
    """
    return ".".join(str(part) for part in path) or "the state"


def a(value: Any) -> str:
    """The type of ``value``, with its article.

    >>> a(object()), a(set())
    ('an object', 'a set')
    """
    name = type(value).__qualname__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
