"""States to save, and whether two of them are the same to the last bit."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any

import numpy
import torch
from torch import Tensor


def bits(tensor: Tensor) -> bytes:
    """The bytes of the values, found without the code that writes and reads checkpoints."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def difference(one: Any, two: Any, path: str = "state") -> str | None:
    """Where two states first differ in type, value, shape, strides or bits; None if nowhere."""
    if type(one) is not type(two):
        return f"{path}: {type(one)} and {type(two)}"
    if isinstance(one, Tensor):
        same = one.shape == two.shape and one.dtype == two.dtype and one.stride() == two.stride()
        return None if same and bits(one) == bits(two) else f"{path}: {one} and {two}"
    if isinstance(one, numpy.ndarray):
        return difference(torch.from_numpy(one), torch.from_numpy(two), path)
    if isinstance(one, dict):
        if list(one) != list(two) or list(map(type, one)) != list(map(type, two)):
            return f"{path}: keys {list(one)} and {list(two)}"
        return next((d for key in one if (d := difference(one[key], two[key], f"{path}.{key}"))), None)
    if isinstance(one, list | tuple):
        if len(one) != len(two):
            return f"{path}: {len(one)} and {len(two)} items"
        pairs = enumerate(zip(one, two, strict=True))
        return next((d for index, (a, b) in pairs if (d := difference(a, b, f"{path}.{index}"))), None)
    if isinstance(one, float):
        return None if struct.pack(">d", one) == struct.pack(">d", two) else f"{path}: {one} and {two}"
    return None if one == two else f"{path}: {one!r} and {two!r}"


def small_state(value: float) -> dict[str, Any]:
    """A state in which everything is made from ``value``, so that a mixture of two would be seen."""
    weight = torch.full((3, 4), value)
    return {
        "model": OrderedDict(weight=weight, tied=weight, bias=torch.full((5,), value)),
        "optimizer": {"state": {0: {"step": torch.tensor(value), "exp_avg": torch.full((4, 3), value).t()}}},
        "clock": {"steps": int(value)},
    }


def value_of(state: dict[str, Any]) -> float:
    """The one value that a whole ``small_state`` was made from; fails on a mixture."""
    found = {float(x) for tensor in state["model"].values() for x in tensor.flatten()}
    moments = state["optimizer"]["state"][0]
    found |= {float(moments["step"]), *(float(x) for x in moments["exp_avg"].flatten()), float(state["clock"]["steps"])}
    assert len(found) == 1, f"a mixture of {found}"
    return found.pop()
