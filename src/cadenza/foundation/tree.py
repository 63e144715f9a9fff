"""The tensors in a nested batch or output: what shape they have, taken out, put in, copied."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from torch import Tensor

from cadenza.data.transfer import rebuilt

_PLAIN = (str, int, float, bool, bytes, type(None))
_MANY = 10_000
"""So many objects are looked into for tensors."""


class Unknown(TypeError):
    """Something in a batch is neither a tensor nor a plain value, so its content cannot be followed."""


def shape_of(value: Any) -> Hashable:
    """What two batches must have in common to be played by one recorded step: structure, shapes, plain values.

    >>> import torch
    >>> shape_of((torch.zeros(2, 3), "a")) == shape_of((torch.ones(2, 3), "a"))
    True
    """
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if type(value) in (list, tuple) and len(value) == 2 and type(value[0]) is Tensor and type(value[1]) is Tensor:
        one, other = value  # by far the most common, so it is asked first
        return (
            (type(value), one.shape, one.stride(), one.dtype, one.device),
            (other.shape, other.stride(), other.dtype, other.device),
        )
    if isinstance(value, list | tuple):
        return type(value), *map(shape_of, value)
    if isinstance(value, Mapping):
        return type(value), *((key, shape_of(inner)) for key, inner in value.items())
    if isinstance(value, _PLAIN):
        return type(value), value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), *(shape_of(getattr(value, field.name)) for field in dataclasses.fields(value))
    raise Unknown(f"the batch holds a {type(value).__name__}")


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Every tensor in ``value``, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from tensors_of(inner)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from tensors_of(inner)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name))


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``value`` with every tensor replaced by what ``change`` makes of it.

    >>> import torch
    >>> with_tensors({"a": [torch.ones(1)], "b": 2}, lambda tensor: tensor + 1)
    {'a': [tensor([2.])], 'b': 2}
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        parts = [with_tensors(inner, change) for inner in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        return [with_tensors(inner, change) for inner in value]
    if isinstance(value, Mapping):
        changed = {key: with_tensors(inner, change) for key, inner in value.items()}
        return changed if type(value) is dict else rebuilt(value, changed)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = copy.copy(value)  # not by its __init__, which may want something else
        for field in dataclasses.fields(value):
            object.__setattr__(made, field.name, with_tensors(getattr(value, field.name), change))
        return made
    return value


def what_hides_tensors(value: Any) -> str | None:
    """The kind of an object in ``value`` that holds tensors where nothing here finds them, if there is one.

    >>> import torch
    >>> what_hides_tensors({"dice": torch.distributions.Categorical(torch.ones(6))}), what_hides_tensors([1, "a"])
    ('Categorical', None)
    """
    if isinstance(value, (Tensor, *_PLAIN)):
        return None
    if isinstance(value, list | tuple):
        return next((hidden for hidden in map(what_hides_tensors, value) if hidden is not None), None)
    if isinstance(value, Mapping):
        return what_hides_tensors(list(value.values()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return what_hides_tensors([getattr(value, field.name) for field in dataclasses.fields(value)])
    return type(value).__name__ if _holds_tensor(value) else None


def _holds_tensor(value: Any) -> bool:
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < _MANY:
        one = waiting.pop()
        if isinstance(one, Tensor):
            return True
        if id(one) in seen or isinstance(one, (*_PLAIN, type)):
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | deque):
            waiting += one
        else:
            waiting += getattr(one, "__dict__", {}).values()
    return False
