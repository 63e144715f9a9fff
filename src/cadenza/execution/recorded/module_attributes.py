"""What modules hold on the host: values that shape a step, and lists and dicts that a step may change."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from numbers import Number
from random import SystemRandom
from typing import Any

import torch
from torch import Tensor, nn

from cadenza.foundation.generators import is_generator
from cadenza.foundation.torch_private import TABLES

_PLAIN = (int, float, str, bool, type(None), Number)
_APART = {*TABLES, "training"}
_DEPTH = 6
"""So deep are lists and dicts looked into."""


def look_of(modules: Iterable[nn.Module]) -> Hashable:
    """Which ``modules`` these are and what stands in their attributes: numbers and texts, such as the rate of a
    dropout, where tensors lie, which functions there are, and all of that in lists and dicts.

    >>> dropout = nn.Dropout(0.1)
    >>> before, dropout.p = look_of([dropout]), 0.2
    >>> changed, dropout.p = look_of([dropout]), 0.1
    >>> before == changed, before == look_of([dropout])
    (False, True)
    """
    return tuple([(id(module), *_looks(vars(module))) for module in modules])


def _looks(attributes: dict[str, Any]) -> Iterator[Hashable]:
    for name, value in attributes.items():
        if name not in _APART:
            yield name
            yield value if type(value) in _PLAIN else _look(value, _DEPTH)


def _look(value: Any, depth: int) -> Hashable:
    if isinstance(value, Tensor):
        return _place(value)
    if isinstance(value, dict):
        parts: Iterable[Any] = [*value.keys(), *value.values()] if value else ()
    elif isinstance(value, list | tuple | deque):
        parts = value
    else:
        return value if isinstance(value, _PLAIN) else (type(value), callable(value) and id(value))
    return (type(value), *[_look(part, depth - 1) for part in parts]) if depth else None


def _place(tensor: Tensor) -> Hashable:
    """Where the numbers of ``tensor`` lie, and how."""
    if tensor.layout is not torch.strided or type(tensor) not in (Tensor, nn.Parameter):
        return id(tensor)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def generators_of(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, str, Any]]:
    """The random number generators of the host that ``modules`` hold as attributes, with module and name.

    >>> module = nn.Identity()
    >>> module.noise = torch.Generator()
    >>> [(type(one).__name__, name) for one, name, _ in generators_of([module])]
    [('Identity', 'noise')]
    """
    return [(one, name, value) for one in modules for name, value in vars(one).items() if _is_of_host(value)]


def _is_of_host(value: Any) -> bool:
    if not is_generator(value) or isinstance(value, SystemRandom):  # which has no state
        return False
    return not isinstance(value, torch.Generator) or value.device.type == "cpu"


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def containers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The lists, dicts, sets and deques among the attributes of ``module`` and inside these, with the attribute."""
    waiting = [(name, value) for name, value in vars(module).items() if name not in TABLES]
    seen: set[int] = set()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, tuple):
            waiting += [(name, inner) for inner in value]
        elif isinstance(value, dict | list | set | deque) and id(value) not in seen:
            seen.add(id(value))
            yield name, value
            waiting += [(name, inner) for inner in (value.values() if isinstance(value, dict) else value)]


def same_content(before: Any, now: Any) -> bool:
    """Whether two answers of ``content`` tell the same.

    >>> same_content([1, "a"], [1, "a"]), same_content({"a": 1}, {"a": 2}), same_content([], [1])
    (True, False, False)
    """
    if isinstance(before, dict):
        return before.keys() == now.keys() and all(same(value, now[key]) for key, value in before.items())
    return len(before) == len(now) and all(map(same, before, now))


def same(before: Any, now: Any) -> bool:
    """Whether a value is the same object, or one that means the same to a step."""
    return before is now or (_is_plain(before) and _is_plain(now) and bool(before == now))
