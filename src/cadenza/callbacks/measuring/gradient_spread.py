"""How the gradients of each layer are spread, worked out where they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The shares of the magnitudes of a layer, without those that are 0, that lie below its ``quantiles``."""
_MOST = 1_000_000
"""Of a layer with more gradients, an even choice of about so many is sorted; all others count fully."""


@dataclass(frozen=True)
class Spread:
    """The gradients of one parameter: how many there are, how large they are, and how often which value occurs."""

    name: str
    count: int
    zeros: int
    not_finite: int
    least: float
    greatest: float
    quantiles: tuple[float, ...]
    bins: tuple[int, ...]

    @property
    def largest(self) -> float:
        """The largest magnitude that is finite."""
        return max(-self.least, self.greatest)


class Measured:
    """The same while it is still on the device, so that measuring waits for nothing."""

    def __init__(self, name: str, gradient: Tensor, bins: int) -> None:
        values = flat(gradient)
        self.name, self.count, self.bins = name, values.numel(), bins
        finite = values.isfinite()
        least = torch.where(finite, values, torch.inf).min()
        greatest = torch.where(finite, values, -torch.inf).max()
        counts = torch.stack([(values == 0).sum(), (~finite).sum()])
        sizes = torch.cat([least[None], greatest[None], quantiles(values.abs())])
        self.parts = counts, sizes, histogram(values, least, greatest, bins)

    def read(self) -> Spread:
        """This waits for the device."""
        counts, sizes, bins = (part.tolist() for part in self.parts)
        return Spread(self.name, self.count, counts[0], counts[1], sizes[0], sizes[1], tuple(sizes[2:]), tuple(bins))


def flat(gradient: Tensor) -> Tensor:
    """The values of a gradient in one row: of a sparse one those that are there, of a sharded one the part here."""
    gradient = gradient.detach()
    if hasattr(gradient, "to_local"):
        gradient = gradient.to_local()
    if gradient.is_sparse:
        gradient = gradient.coalesce().values()
    return gradient.flatten().float()


def quantiles(values: Tensor, shares: Sequence[float] = SHARES) -> Tensor:
    """The values below which so large shares of all lie that are not 0, between two neighbours in proportion.

    >>> quantiles(torch.tensor([4.0, 1.0, 0.0, 2.0, 3.0, 5.0]), (0.25, 0.9))
    tensor([2.0000, 4.6000])
    """
    ordered = values[:: -(-values.numel() // _MOST)].sort().values
    last = ordered.numel() - 1
    zeros = (ordered == 0).sum().clamp(max=last)  # it stays on the device, and so do the places that follow from it
    places = torch.stack([zeros + share * (last - zeros) for share in shares])
    below = places.long()
    return torch.lerp(ordered[below], ordered[(below + 1).clamp(max=last)], places - below)


def histogram(values: Tensor, least: Tensor, greatest: Tensor, bins: int) -> Tensor:
    """How many values lie in each of ``bins`` equal parts from ``least`` to ``greatest``; what is not finite is left
    out."""
    width = (greatest - least) / bins
    inside = ((values - least) / torch.where(width > 0, width, 1.0)).nan_to_num(bins, bins, bins)
    places = torch.where(values.isfinite(), inside.long().clamp(0, bins - 1), bins)
    counts = torch.zeros(bins + 1, dtype=torch.long, device=values.device)
    return counts.index_add_(0, places, torch.ones_like(places))[:bins]


def measure_gradients(named: Iterable[tuple[str, Tensor]], bins: int = 40) -> list[Measured]:
    """Measures the gradient of every parameter in ``named`` that has one, without waiting for the device.

    >>> weight = torch.zeros(3, requires_grad=True)
    >>> (weight * torch.tensor([0.0, 1.0, -2.0])).sum().backward()
    >>> measure_gradients([("weight", weight)], bins=3)[0].read()  # doctest: +ELLIPSIS
    Spread(name='weight', count=3, zeros=1, not_finite=0, least=-2.0, greatest=1.0, quantiles=..., bins=(1, 0, 2))
    """
    with torch.no_grad():
        return [
            Measured(name, parameter.grad, bins)
            for name, parameter in named
            if parameter.grad is not None and flat(parameter.grad).numel()
        ]
