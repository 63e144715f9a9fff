"""All random number generators that a training draws from, together."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cadenza.foundation.tree import entries, same_tree

NAMES = ("torch", "python", "numpy", "cuda")


def seed_everything(seed: int) -> None:
    """Seeds Python, torch on all devices and, if it is loaded, NumPy."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"a seed is a whole number from 0 to 2**32 - 1, not {seed}")
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def rng_state(device: torch.device | None = None, *, host: bool = True) -> dict[str, Any]:
    """The state of every generator, ``host=False`` of torch's alone; ``set_rng_state`` puts it back."""
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if host:
        state["python"] = random.getstate()
    if host and "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    if device is not None and device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Any], device: torch.device | None = None) -> None:
    """Sets the generators that ``state`` has something of."""
    if "python" in state:
        random.setstate(state["python"])
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if "cuda" in state and device is not None:
        torch.cuda.set_rng_state(state["cuda"], device)


@contextlib.contextmanager
def rng_kept(device: torch.device | None = None) -> Iterator[None]:
    """Whatever is drawn inside, all generators are as before afterwards."""
    state = rng_state(device)
    try:
        yield
    finally:
        set_rng_state(state, device)


def same_rng(before: dict[str, Any], now: dict[str, Any], names: Sequence[str] = NAMES) -> bool:
    """Whether no generator of those in both states has moved. NumPy's may be in one alone: then it was loaded, and
    nothing of ours was drawn from it.

    >>> before = rng_state()
    >>> same_rng(before, rng_state()), torch.rand(()) is None, same_rng(before, rng_state())
    (True, False, False)
    """
    return all(same_state(before[name], now[name]) for name in names if name in before and name in now)


def same_state(before: Any, now: Any) -> bool:
    """Whether a generator stands where it stood, by two of its states."""
    return same_tree(before, now, _same, _parts_of_a_state)


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, Tensor):
        return torch.equal(before, now)
    alike = before == now
    return bool(alike.all() if hasattr(alike, "all") else alike)  # NumPy keeps its numbers in an array


def _parts_of_a_state(state: Any) -> Any:
    many = isinstance(state, tuple) and len(state) > 8  # the numbers of Python's generator are compared at once
    return None if many else entries(state)


# As plain values ------------------------------------------------------------------------------------------------------


def plain_rng(state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with a list for NumPy's array, which ``set_rng_state`` takes as well."""
    if "numpy" not in state:
        return state
    name, keys, *rest = state["numpy"]
    return {**state, "numpy": (name, keys.tolist(), *rest)}


def pack_rng(state: dict[str, Any]) -> dict[str, Any]:
    """The state of the generators as tensors and plain values, as a checkpoint stores it."""
    packed: dict[str, Any] = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    if "python" in state:
        version, numbers, gauss = state["python"]
        packed["python"] = {"version": version, "numbers": torch.tensor(numbers), "gauss": gauss}
    if "numpy" in state:
        name, keys, position, has_gauss, gauss = state["numpy"]
        numbers = torch.tensor(keys.tolist())
        packed["numpy"] = {"name": name, "numbers": numbers, "rest": [position, has_gauss, gauss]}
    return packed


def unpack_rng(packed: dict[str, Any]) -> dict[str, Any]:
    """What ``pack_rng`` was given. NumPy's is left out if NumPy is not loaded.

    >>> state = rng_state()
    >>> unpack_rng(pack_rng(state))["python"] == state["python"]
    True
    """
    state: dict[str, Any] = {name: value for name, value in packed.items() if isinstance(value, Tensor)}
    if "python" in packed:
        python = packed["python"]
        state["python"] = (python["version"], tuple(python["numbers"].tolist()), python["gauss"])
    if "numpy" in packed and "numpy" in sys.modules:
        numpy = packed["numpy"]
        keys = sys.modules["numpy"].array(numpy["numbers"].tolist(), dtype="uint32")
        state["numpy"] = (numpy["name"], keys, *numpy["rest"])
    return state
