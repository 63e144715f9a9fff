"""Generators of random numbers that objects hold, such as samplers and data sets, and the states of all together."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cadenza.foundation.rng import rng_state, same_rng, set_rng_state
from cadenza.foundation.tree import Pairs, entries, fold, plain

_LEADS_ON = ("dataset", "datasets", "sampler", "batch_sampler", "transform", "transforms", "collate_fn")
"""Attributes through which generators are looked for: a data set in a data set, the transform of one."""
_NOTHING = torch.empty(0, dtype=torch.uint8)
"""The state of torch's generator in what is packed of particular objects alone."""


@dataclass(frozen=True, slots=True)
class RngStates:
    """Where generators stood at one moment: ``rng`` those of this process, ``own`` those of particular objects."""

    rng: dict[str, Any]
    own: tuple[Any, ...] = ()


def capture(own: Iterable[Any] = ()) -> RngStates:
    """Where the generators stand now; drawing goes on undisturbed."""
    return RngStates(rng_state(), tuple(state_of(one) for one in own))


def put_back(draws: RngStates, own: Iterable[Any] = (), *, everywhere: bool = True) -> None:
    """Makes the generators stand where they stood; with ``everywhere=False`` only the ``own`` ones."""
    if everywhere:
        set_rng_state(draws.rng)
    for generator, state in zip(own, draws.own, strict=False):
        set_state(generator, state)


def same(one: RngStates, other: RngStates) -> bool:
    """Whether no generator of the process has moved between the two moments."""
    return same_rng(one.rng, other.rng)


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


def pack(draws: RngStates | None) -> Any:
    """``draws`` as dicts, lists, numbers, texts and tensors, which a checkpoint can hold.

    >>> unpack(pack(capture())).rng["python"] == random.getstate()
    True
    """
    if draws is None:
        return None
    rng = {name: pack_value(draws.rng.get(name)) for name in ("python", "numpy")}
    return {"torch": draws.rng.get("torch", _NOTHING), **rng, "own": [pack_value(state) for state in draws.own]}


def unpack(tree: Any) -> RngStates | None:
    """What ``pack`` made a tree of."""
    if tree is None:
        return None
    rng = {name: unpack_value(tree[name]) for name in ("torch", "python", "numpy")}
    known = {name: state for name, state in rng.items() if state is not None and len(state)}
    return RngStates(known, tuple(unpack_value(state) for state in tree["own"]))


def pack_value(value: Any) -> Any:
    return fold(value, _packed_leaf, _packed, lambda one: None if _many_numbers(one) else entries(one))


def _many_numbers(value: Any) -> bool:
    many = isinstance(value, list | tuple) and len(value) > 8
    return many and all(type(one) is int and abs(one) < 2**63 for one in value)


def _packed(container: Any, parts: Pairs) -> Any:
    return {"dict" if isinstance(container, dict) else "tuple": plain(container, parts)}


def _packed_leaf(value: Any) -> Any:
    if hasattr(value, "item") and not isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()  # a number of NumPy's
    if value is None or isinstance(value, str | bool | float | Tensor):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else {"int": hex(value)}
    if isinstance(value, list | tuple):
        return {"ints": torch.tensor(value)}
    words = value.view("int64") if value.dtype.itemsize == 8 else value.astype("int64")
    return {"array": torch.from_numpy(words.copy()), "dtype": str(value.dtype)}


def unpack_value(tree: Any) -> Any:
    return fold(tree, _unpacked_leaf, _unpacked, _packed_entries)


def _packed_entries(tree: Any) -> Pairs | None:
    return entries(tree.get("dict", tree.get("tuple"))) if isinstance(tree, dict) else None


def _unpacked(container: Any, parts: Pairs) -> Any:
    return dict(parts) if "dict" in container else tuple(part for _, part in parts)


def _unpacked_leaf(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "int" in tree:
        return int(tree["int"], 16)
    if "ints" in tree:
        return tuple(tree["ints"].tolist())
    if "array" in tree:
        words = tree["array"].numpy()
        dtype = tree["dtype"]
        return words.view(dtype) if words.dtype.itemsize == _size(dtype) else words.astype(dtype)
    raise ValueError(f"the state of a generator cannot be read: it has the keys {sorted(map(str, tree))}")


def _size(dtype: str) -> int:
    return 8 if dtype.endswith("64") else 4
