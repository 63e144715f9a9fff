"""Moving nested batches to a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cadenza.foundation.tree import rebuilt


def to_device(batch: Any, device: torch.device) -> Any:
    """``batch`` with every tensor in it on ``device``; copies from pinned memory do not wait.

    Mappings, lists, tuples, named tuples and dataclasses keep their type; an object with a ``to`` method is asked to
    move itself; anything else is left as it is.

    >>> to_device({"x": [torch.ones(2)], "id": "a"}, torch.device("cpu"))
    {'x': [tensor([1., 1.])], 'id': 'a'}
    """
    if isinstance(batch, Tensor):
        here = batch.device
        return batch if here == device else batch.to(device, non_blocking=here.type == "cpu" and batch.is_pinned())
    if type(batch) in (tuple, list):  # nearly always, and they need not be asked for more
        return type(batch)([to_device(value, device) for value in batch])
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, Mapping):
        moved = {key: to_device(value, device) for key, value in batch.items()}
        return moved if type(batch) is dict else rebuilt(batch, moved.items())
    if isinstance(batch, tuple):
        parts = [to_device(value, device) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, list):
        return [to_device(value, device) for value in batch]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = [field.name for field in dataclasses.fields(batch) if field.init]
        return dataclasses.replace(batch, **{name: to_device(getattr(batch, name), device) for name in fields})
    return batch
