"""Moving nested batches to a device."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Any, device: torch.device) -> Any:
    """``batch`` with every tensor in it on ``device``; copies from pinned memory do not wait.

    Dicts, lists, tuples, named tuples and dataclasses keep their type; an object with a ``to`` method is asked to
    move itself; anything else is left as it is.

    >>> to_device({"x": [torch.ones(2)], "id": "a"}, torch.device("cpu"))
    {'x': [tensor([1., 1.])], 'id': 'a'}
    """
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=batch.device.type == "cpu" and batch.is_pinned())
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, dict):
        moved = {key: to_device(value, device) for key, value in batch.items()}
        return moved if type(batch) is dict else _rebuild_dict(batch, moved)
    if isinstance(batch, tuple):
        parts = [to_device(value, device) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, list):
        return [to_device(value, device) for value in batch]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch) if field.init]
        return dataclasses.replace(batch, **{name: to_device(getattr(batch, name), device) for name in names})
    return batch


def _rebuild_dict(original: dict[Any, Any], moved: dict[Any, Any]) -> Any:
    """A mapping of the type of ``original``: an object that can move itself does, others are rebuilt from a dict."""
    try:
        return type(original)(moved)
    except TypeError:
        copy = original.copy()
        copy.update(moved)
        return copy
