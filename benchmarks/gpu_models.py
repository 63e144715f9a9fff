"""The models of ``gpu.py``, each with its batches, which are on the device already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

CUDA = torch.device("cuda")


@dataclass(frozen=True)
class Case:
    """One row of the table: what is trained, in which number format, and the factor that is aimed at."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    steps: int
    bf16: bool
    aim: float


class Convolutions(nn.Sequential):
    """Nine convolutions of 64 channels, each with BatchNorm, and a linear layer."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for index in range(9):
            layers += [nn.Conv2d(3 if index == 0 else 64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
            if index in (2, 5):
                layers.append(nn.MaxPool2d(2))
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.join(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.inner(self.second(x))


class GPT(nn.Module):
    def __init__(self, words: int = 50304, width: int = 512, layers: int = 8, length: int = 256) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 8, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("numbers", torch.arange(length), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(self.numbers[: tokens.size(1)])
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


class Reader(nn.Module):
    """A classifier of texts that differ in length from batch to batch."""

    def __init__(self, words: int = 5000, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, 4, causal=False) for _ in range(4)))
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(tokens)).mean(1))


def perceptron(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def numbers(batch: int, *shape: int, classes: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, *shape, device=CUDA), torch.randint(0, classes, (batch,), device=CUDA)


def text() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, 50304, (16, 257), device=CUDA)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()


def texts() -> tuple[Tensor, Tensor]:
    length = int(torch.randint(16, 200, ()))
    return torch.randint(0, 5000, (32, length), device=CUDA), torch.randint(0, 10, (32,), device=CUDA)


def cases() -> list[Case]:
    large: Callable[[], nn.Module] = lambda: perceptron(784, 1024, 1024, 10)  # noqa: E731
    large_batch: Callable[[], Any] = lambda: numbers(512, 784)  # noqa: E731
    return [
        Case("tiny MLP", lambda: perceptron(16, 32, 2), lambda: numbers(32, 16, classes=2), 500, False, 14.0),
        Case("MLP, float32", large, large_batch, 300, False, 5.0),
        Case("MLP, bf16", large, large_batch, 300, True, 8.0),
        Case("small CNN, bf16", Convolutions, lambda: numbers(128, 3, 32, 32), 150, True, 1.3),
        Case("GPT, bf16", GPT, text, 50, True, 1.18),
        Case("dynamic shapes, bf16", Reader, texts, 150, True, 0.97),
    ]
