"""Measures of the ready recipes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def overlap(output: Tensor, targets: Tensor) -> Tensor:
    """How well the found areas cover the real ones: intersection over union, mean over the classes of a sample.

    Class 0, where nothing is, does not count, nor does a class that is neither in the sample nor was found in it.

    >>> scores = torch.tensor([[[0.0, 0.0, 1.0, 1.0]], [[1.0, 1.0, 0.0, 0.0]]]).unsqueeze(0)
    >>> overlap(scores, torch.tensor([[[1, 1, 1, 0]]]))
    tensor([0.6667])
    """
    classes = output.shape[1]
    found = one_hot(output.argmax(1), classes).flatten(1, -2)[..., 1:].bool()
    real = one_hot(targets, classes).flatten(1, -2)[..., 1:].bool()
    both, either = (found & real).sum(1), (found | real).sum(1)
    there = either > 0
    shares = torch.where(there, both / either.clamp(min=1), 0.0)
    return shares.sum(1) / there.sum(1).clamp(min=1)
