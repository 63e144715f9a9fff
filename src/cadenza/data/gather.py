"""Putting the outputs of many batches together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def gather(outputs: list[Any], counts: list[int] | None = None) -> Any:
    """One output for all batches: tensors are joined along their first dimension, inside lists, tuples and dicts too.

    ``counts`` is the number of samples in each batch: a list with one entry a sample is joined as a list. What cannot
    be joined (scalars, other objects, tensors that differ in shape) comes back as the list of what each batch gave.

    >>> gather([{"a": torch.ones(2)}, {"a": torch.zeros(1)}])
    {'a': tensor([1., 1., 0.])}
    """
    if not outputs:
        return []
    first = outputs[0]
    if any(type(output) is not type(first) for output in outputs):
        return outputs
    if isinstance(first, Tensor):
        alike = first.dim() > 0 and all(output.shape[1:] == first.shape[1:] for output in outputs)
        return torch.cat(outputs) if alike and all(output.dim() for output in outputs) else outputs
    if isinstance(first, dict) and all(output.keys() == first.keys() for output in outputs):
        return {key: gather([output[key] for output in outputs]) for key in first}
    if isinstance(first, list) and counts is not None and [len(output) for output in outputs] == counts:
        return [one for output in outputs for one in output]
    if isinstance(first, list | tuple) and all(len(output) == len(first) for output in outputs):
        parts = [gather([output[index] for output in outputs]) for index in range(len(first))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return outputs
