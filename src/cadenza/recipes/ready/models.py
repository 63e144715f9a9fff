"""Small models for the ready recipes, and a measure for segmentation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot


class MLP(nn.Sequential):
    """A perceptron; inputs of any shape are flattened.

    >>> MLP(64, [32], 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int, dropout: float = 0.0) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout)]
            inputs = width
        super().__init__(*layers, nn.Linear(inputs, outputs))


class CNN(nn.Sequential):
    """Convolutions with batch norm, pooled to ``size`` by ``size``, and a linear layer.

    >>> CNN([8, 16], 10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, channels: Sequence[int], outputs: int, *, inputs: int = 1, size: int = 4, dropout: float = 0.0
    ) -> None:
        layers: list[nn.Module] = []
        for width in channels:
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            inputs = width
        head = [nn.AdaptiveMaxPool2d(size), nn.Flatten(), nn.Dropout(dropout), nn.Linear(inputs * size * size, outputs)]
        super().__init__(*layers, *head)


class CharacterModel(nn.Module):
    """A recurrent network that says for each place of a text which character comes next.

    Inputs are numbers of characters, (samples, places); outputs are scores, (samples, characters, places), as
    ``CrossEntropyLoss`` takes them.

    >>> CharacterModel(96, 16)(torch.zeros(2, 5, dtype=torch.long)).shape
    torch.Size([2, 96, 5])
    """

    def __init__(self, characters: int, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, characters)

    def forward(self, text: Tensor) -> Tensor:
        states: Tensor = self.recurrent(self.embedding(text))[0]
        scores: Tensor = self.head(states)
        return scores.transpose(1, 2)


class Segmenter(nn.Module):
    """A small U-shaped network: a class for each pixel, from the pixel's surroundings at three scales.

    >>> Segmenter(3, 8)(torch.zeros(2, 1, 16, 16)).shape
    torch.Size([2, 3, 16, 16])
    """

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.fine = _block(1, width)
        self.middle = nn.Sequential(nn.MaxPool2d(2), _block(width, 2 * width))
        self.coarse = nn.Sequential(nn.MaxPool2d(2), _block(2 * width, 2 * width), _block(2 * width, 2 * width))
        self.upper = nn.Sequential(nn.Upsample(scale_factor=2), _block(2 * width, 2 * width))
        self.joined = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(2 * width, width, 1))
        self.head = nn.Sequential(_block(2 * width, width), nn.Conv2d(width, classes, 1))

    def forward(self, images: Tensor) -> Tensor:
        fine = self.fine(images)
        middle = self.middle(fine)
        middle = middle + self.upper(self.coarse(middle))
        scores: Tensor = self.head(torch.cat([fine, self.joined(middle)], dim=1))
        return scores


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


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
