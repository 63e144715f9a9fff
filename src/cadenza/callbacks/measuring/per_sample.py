"""Measures of one batch as plain functions: one value for each sample, so that means over batches are exact.

An output that is not a tensor but has ``logits``, as an attribute or a key, is measured by these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def accuracy(output: Any, targets: Tensor) -> Tensor:
    """1 for each sample whose highest score is that of its class, else 0; over positions, the share of them.

    ``output`` holds scores of shape (N, C, ...), ``targets`` classes of shape (N, ...), or scores of the same shape
    as ``output`` (soft labels), of which the highest counts.

    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    tensor([1., 0.])
    """
    scores = logits_of(output)
    return _per_sample(scores.argmax(1) == _classes(scores, targets))


def top_k_accuracy(output: Any, targets: Tensor, k: int = 5) -> Tensor:
    """1 for each sample whose class is among its ``k`` highest scores, else 0. ``functools.partial`` sets ``k``.

    >>> top_k_accuracy(torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]]), torch.tensor([2, 1]), k=2)
    tensor([1., 0.])
    """
    scores = logits_of(output)
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(f"k must be from 1 to the number of classes, here {scores.shape[1]}, not {k}")
    highest = scores.topk(k, dim=1).indices
    return _per_sample((highest == _classes(scores, targets).unsqueeze(1)).any(1))


def mean_absolute_error(output: Any, targets: Tensor) -> Tensor:
    """The distance of each sample from its target.

    >>> mean_absolute_error(torch.tensor([[1.0], [3.0]]), torch.tensor([1.5, 3.0]))
    tensor([0.5000, 0.0000])
    """
    return _per_sample((shaped_like(logits_of(output), targets) - targets).abs())


def mean_squared_error(output: Any, targets: Tensor) -> Tensor:
    """The squared distance of each sample from its target.

    >>> mean_squared_error(torch.tensor([[1.0], [3.0]]), torch.tensor([1.5, 3.0]))
    tensor([0.2500, 0.0000])
    """
    return _per_sample((shaped_like(logits_of(output), targets) - targets).square())


def logits_of(output: Any) -> Tensor:
    """The tensor that is measured: ``output`` itself, else its ``logits``.

    >>> logits_of({"loss": torch.tensor(0.5), "logits": torch.ones(2)})
    tensor([1., 1.])
    """
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(found, Tensor):
        return found
    kind = type(output).__name__
    has = f" with {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
    raise TypeError(
        f"a tensor, or an output with logits, can be measured, not a {kind}{has}: give Metrics(..., prepare=), a "
        "function of the run that returns (output, targets)"
    )


def _per_sample(values: Tensor) -> Tensor:
    values = values if values.is_floating_point() else values.to(torch.get_default_dtype())
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _classes(output: Tensor, targets: Tensor) -> Tensor:
    if output.dim() < 2:
        raise ValueError(f"scores have the shape (samples, classes, ...), not {tuple(output.shape)}")
    shape = output.shape
    if targets.shape == shape:
        return targets.argmax(1)
    if targets.shape != shape[:1] + shape[2:]:
        expected = (shape[0], *shape[2:])
        raise ValueError(f"scores of shape {tuple(shape)} need targets of shape {expected}, not {targets.shape}")
    return targets


def shaped_like(output: Tensor, targets: Tensor) -> Tensor:
    """``output`` in the shape of ``targets``; only a last dimension of one may differ, nothing is spread out."""
    if output.shape == targets.shape:
        return output
    if output.shape == (*targets.shape, 1) or targets.shape == (*output.shape, 1):
        return output.reshape(targets.shape)
    raise ValueError(f"outputs of shape {tuple(output.shape)} and targets of shape {tuple(targets.shape)} do not match")
