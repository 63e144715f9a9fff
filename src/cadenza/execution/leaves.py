"""The tensors in a nested batch or output: what shape they have, taken out, put in, copied."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from torch import Tensor

_PLAIN = (str, int, float, bool, bytes, type(None))


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
        return changed if type(value) is dict else type(value)(changed)  # type: ignore[call-arg]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: with_tensors(getattr(value, name), change) for name in names})
    return value
