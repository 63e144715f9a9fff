"""Areas under the curves of a threshold, exact for scores that are equal, without a loop."""

from __future__ import annotations

import torch
from torch import Tensor


def roc_auc(scores: Tensor, positive: Tensor) -> float:
    """The area under the ROC curve; equal scores count half. NaN if one of the classes does not occur.

    >>> roc_auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.875
    """
    hits, misses, _ = counts_by_threshold(scores, positive)
    if not len(hits) or hits[-1] == 0 or misses[-1] == 0:
        return float("nan")
    start = hits.new_zeros(1)
    hits, misses = torch.cat([start, hits]), torch.cat([start, misses])
    return float(torch.trapezoid(hits, misses) / (hits[-1] * misses[-1]))


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """The mean of the precision at each threshold, weighted by the recall that it adds. NaN without positives.

    >>> average_precision(torch.tensor([0.1, 0.4, 0.3, 0.8]), torch.tensor([0, 0, 1, 1]))  # 1/2 * 1 + 1/2 * 2/3
    0.8333333333333333
    """
    hits, misses, _ = counts_by_threshold(scores, positive)
    if not len(hits) or hits[-1] == 0:
        return float("nan")
    gained = torch.diff(hits, prepend=hits.new_zeros(1))
    return float((gained * hits / (hits + misses)).sum() / hits[-1])


def counts_by_threshold(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Positives and negatives whose score is at least the threshold, and the thresholds: every score there is, from the
    highest on."""
    order = torch.argsort(scores.flatten(), descending=True)
    ranked, hits = scores.flatten()[order], positive.flatten().bool()[order].double().cumsum(0)
    last = torch.ones_like(ranked, dtype=torch.bool)
    last[:-1] = ranked[1:] != ranked[:-1]
    hits = hits[last]
    seen = torch.arange(1, len(ranked) + 1, dtype=torch.float64, device=ranked.device)[last]
    return hits, seen - hits, ranked[last]
