"""Rows of tensors that lie in memory, a batch at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

_log = logging.getLogger("cadenza.data")


def read(tensors: tuple[Tensor, ...], indices: Iterator[Any], pin: bool) -> Iterator[list[Tensor]]:
    """One list of fresh tensors for each index batch, as ``default_collate`` makes them."""
    for index in indices:
        if type(index) is range:
            if index.stop > len(tensors[0]):  # a slice would end with the data, and say nothing
                raise IndexError(f"index {index.stop - 1} is out of bounds for data of {len(tensors[0])} samples")
            part = slice(index.start, index.stop)
            batch = [tensor[part].clone(memory_format=torch.contiguous_format) for tensor in tensors]
        else:
            picks = _from_list(index, tensors[0]) if type(index) is list else index
            if picks is None:
                batch = default_collate([tuple(tensor[one] for tensor in tensors) for one in index])
            else:
                batch = [_picked(tensor, picks) for tensor in tensors]
        yield [tensor.pin_memory() for tensor in batch] if pin else batch


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Types of which torch cannot select rows, and those of the same size of which it can."""


def _picked(tensor: Tensor, index: Tensor) -> Tensor:
    signed = _SIGNED.get(tensor.dtype)
    if signed is None:
        return tensor.index_select(0, index)
    return tensor.view(signed).index_select(0, index).view(tensor.dtype)


def _from_list(indices: list[Any], like: Tensor) -> Tensor | None:
    """The rows that ``indices`` mean; None if one of them is no whole number but a list, a slice or a mask.

    >>> _from_list([1, -1], torch.zeros(4)), _from_list([slice(2)], torch.zeros(4))
    (tensor([1, 3]), None)
    """
    if set(map(type, indices)) != {int}:
        indices = [_number(one) for one in indices]
        if None in indices:
            return None
    index = torch.tensor(indices)
    return torch.where(index < 0, index + len(like), index).to(like.device)


def _number(index: Any) -> int | None:
    if isinstance(index, Tensor) and index.dim() == 0 and index.dtype != torch.bool:
        index = index.item()
    return int(index) if isinstance(index, Integral) and not isinstance(index, bool) else None


def moved_if_they_fit(tensors: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """``tensors`` on ``device`` if they leave half of its free memory to the training, else as they are."""
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if needed > free // 2:
            _log.warning("%d MB of data stay on the host: %s has %d MB free", needed >> 20, device, free >> 20)
            return tensors
    return tuple(tensor.to(device) for tensor in tensors)
