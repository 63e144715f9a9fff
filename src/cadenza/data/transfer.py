"""Moving nested batches to a device."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from cadenza.foundation.tree import entries, rebuilt


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
    if type(batch) is dict:
        return {key: to_device(value, device) for key, value in batch.items()}
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, list):
        return [to_device(value, device) for value in batch]
    if (pairs := entries(batch)) is not None:
        return rebuilt(batch, ((key, to_device(value, device)) for key, value in pairs))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _with_fields_on(batch, device)
    return batch


def _with_fields_on(batch: Any, device: torch.device) -> Any:
    names = [field.name for field in dataclasses.fields(batch) if field.init]
    return dataclasses.replace(batch, **{name: to_device(getattr(batch, name), device) for name in names})
