"""Data for the ready recipes: what scikit-learn brings along, and what is made here. Nothing is downloaded."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from cadenza.foundation.arguments import among

Part = Literal["train", "val", "test"]
SHARES = {"train": (0.0, 0.7), "val": (0.7, 0.85), "test": (0.85, 1.0)}
"""Which samples, after they were mixed, belong to a part."""


def split(samples: int, part: str, seed: int) -> Tensor:
    """The indices of a part, always the same ones for a seed.

    >>> parts = [split(10, part, 0) for part in ("train", "val", "test")]
    >>> [len(part) for part in parts], sorted(torch.cat(parts).tolist()) == list(range(10))
    ([7, 1, 2], True)
    """
    among("part", part, SHARES)
    mixed = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    first, last = SHARES[part]
    return mixed[int(first * samples) : int(last * samples)]


def _sklearn() -> Any:
    try:
        import sklearn.datasets
    except ImportError as error:
        raise ImportError("this data comes with scikit-learn: pip install 'cadenza[examples]'") from error
    return sklearn.datasets


class Digits(TensorDataset):
    """1797 handwritten digits of 8x8 pixels from 0 to 1, and which digit each is.

    >>> [tuple(tensor.shape) for tensor in Digits("val").tensors]
    [(270, 1, 8, 8), (270,)]
    """

    def __init__(self, part: Part = "train", *, split_seed: int = 0) -> None:
        found = _sklearn().load_digits()
        chosen = split(len(found.target), part, split_seed)
        images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
        super().__init__(images[chosen], torch.tensor(found.target)[chosen])


class Diabetes(TensorDataset):
    """442 patients: ten measurements of each, and how far the disease came in a year.

    Measurements and targets are standardised with the mean and spread of the training part.

    >>> [tuple(tensor.shape) for tensor in Diabetes("train").tensors]
    [(309, 10), (309, 1)]
    """

    def __init__(self, part: Part = "train", *, split_seed: int = 0) -> None:
        found = _sklearn().load_diabetes(scaled=False)
        whole = torch.cat([torch.tensor(found.data), torch.tensor(found.target).unsqueeze(1)], dim=1).float()
        known = whole[split(len(whole), "train", split_seed)]
        whole = (whole - known.mean(0)) / known.std(0)
        chosen = whole[split(len(whole), part, split_seed)]
        super().__init__(chosen[:, :-1], chosen[:, -1:])


class Shapes(TensorDataset):
    """Made pictures of one disc and one darker square each, in noise; the target says of each pixel what is there:
    0 nothing, 1 disc, 2 square.

    >>> images, masks = Shapes(4).tensors
    >>> tuple(images.shape), tuple(masks.shape), sorted(set(masks.flatten().tolist()))
    ((4, 1, 32, 32), (4, 32, 32), [0, 1, 2])
    """

    def __init__(self, samples: int = 1000, *, size: int = 32, noise: float = 0.3, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")

        def places() -> tuple[Tensor, Tensor, Tensor]:
            radius = torch.randint(size // 8, size // 4, (samples, 1, 1), generator=generator)
            centre = torch.rand(2, samples, 1, 1, generator=generator) * (size - 2 * radius) + radius
            return radius, row - centre[0], column - centre[1]

        radius, down, right = places()
        masks = (down**2 + right**2 <= radius**2).long()
        radius, down, right = places()
        masks[torch.maximum(down.abs(), right.abs()) <= radius] = 2  # the square lies on top
        images = torch.tensor([0.0, 1.0, 0.6])[masks] + noise * torch.randn(samples, size, size, generator=generator)
        super().__init__(images.unsqueeze(1), masks)
