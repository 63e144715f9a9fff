"""States of random number generators: torch's, Python's and NumPy's own, and those that samplers and data sets hold."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_LEADS_ON = ("dataset", "datasets", "sampler", "batch_sampler", "transform", "transforms", "collate_fn")
"""Attributes through which generators are looked for: a data set in a data set, the transform of one."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Where all generators of this process stood at one moment; ``own`` are those of particular objects."""

    torch: Tensor
    python: Any
    numpy: Any
    own: tuple[Any, ...] = ()


def capture(own: Iterable[Any] = ()) -> Draws:
    """Where the generators stand now; drawing goes on undisturbed."""
    numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
    return Draws(torch.get_rng_state(), random.getstate(), numpy, tuple(state_of(one) for one in own))


def capture_own(own: Iterable[Any]) -> Draws:
    """Where the generators of particular objects stand, and nothing of those of the process, which the run keeps."""
    return Draws(torch.empty(0, dtype=torch.uint8), None, None, tuple(state_of(one) for one in own))


def put_back(draws: Draws, own: Iterable[Any] = (), *, everywhere: bool = True) -> None:
    """Makes the generators stand where they stood; with ``everywhere=False`` only the ``own`` ones."""
    if everywhere:
        torch.set_rng_state(draws.torch)
        random.setstate(draws.python)
        if draws.numpy is not None:
            import numpy

            numpy.random.set_state(draws.numpy)
    for generator, state in zip(own, draws.own, strict=False):
        set_state(generator, state)


def same(one: Draws, other: Draws) -> bool:
    """Whether no generator of the process has moved between the two moments.

    >>> before = capture()
    >>> same(before, capture()), torch.rand(()) is None, same(before, capture())
    (True, False, False)
    """
    if not torch.equal(one.torch, other.torch) or one.python != other.python:
        return False
    return one.numpy is None or _alike(one.numpy, other.numpy)


def _alike(one: Any, other: Any) -> bool:
    if other is None:
        return True  # NumPy was loaded in between: nothing of ours was drawn from it
    return bool(one[2:] == other[2:] and (one[1] == other[1]).all())


# One generator --------------------------------------------------------------------------------------------------------


def is_generator(value: Any) -> bool:
    """Whether ``value`` is a generator of random numbers whose state can be read and set."""
    if isinstance(value, torch.Generator | random.Random):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


def state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def generators_in(*objects: Any) -> list[Any]:
    """The generators that the objects hold as attributes, and the data sets, samplers and transforms in them.

    >>> class Noisy:
    ...     def __init__(self):
    ...         self.draws = random.Random(1)
    >>> len(generators_in(Noisy(), None))
    1
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = list(objects)
    while waiting:
        one = waiting.pop(0)
        if is_generator(one):
            found.setdefault(id(one), one)
        elif id(one) not in seen:
            seen.add(id(one))
            if type(one) in (list, tuple) and all(one is not given for given in objects):  # not a list of batches
                waiting += one[:64]
            for name, value in sorted(getattr(one, "__dict__", {}).items()):
                if name in _LEADS_ON or is_generator(value):
                    waiting.append(value)
    return list(found.values())


# As a tree of plain values --------------------------------------------------------------------------------------------


def pack(draws: Draws | None) -> Any:
    """``draws`` as dicts, lists, numbers, texts and tensors, which a checkpoint can hold.

    >>> unpack(pack(capture())).python == random.getstate()
    True
    """
    if draws is None:
        return None
    return {
        "torch": draws.torch,
        "python": pack_value(draws.python),
        "numpy": pack_value(draws.numpy),
        "own": [pack_value(state) for state in draws.own],
    }


def unpack(tree: Any) -> Draws | None:
    """What ``pack`` made a tree of."""
    if tree is None:
        return None
    own = tuple(unpack_value(state) for state in tree["own"])
    return Draws(tree["torch"], unpack_value(tree["python"]), unpack_value(tree["numpy"]), own)


def pack_value(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | float | Tensor):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else {"int": hex(value)}
    if isinstance(value, dict):
        return {"dict": {key: pack_value(one) for key, one in value.items()}}
    if isinstance(value, list | tuple):
        if len(value) > 8 and all(type(one) is int and abs(one) < 2**63 for one in value):
            return {"ints": torch.tensor(value)}
        return {"tuple": [pack_value(one) for one in value]}
    if hasattr(value, "dtype") and value.ndim > 0:
        words = value.view("int64") if value.dtype.itemsize == 8 else value.astype("int64")
        return {"array": torch.from_numpy(words.copy()), "dtype": str(value.dtype)}
    return pack_value(value.item())  # a number of NumPy's


def unpack_value(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    kind, value = next(iter(tree.items()))
    if kind == "int":
        return int(value, 16)
    if kind == "dict":
        return {key: unpack_value(one) for key, one in value.items()}
    if kind == "ints":
        return tuple(value.tolist())
    if kind == "tuple":
        return tuple(unpack_value(one) for one in value)
    if "array" in tree:
        words = tree["array"].numpy()
        dtype = tree["dtype"]
        return words.view(dtype) if words.dtype.itemsize == _size(dtype) else words.astype(dtype)
    raise ValueError(f"the state of a generator cannot be read: it has the keys {sorted(map(str, tree))}")


def _size(dtype: str) -> int:
    return 8 if dtype.endswith("64") else 4
