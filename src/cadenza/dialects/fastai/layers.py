"""The layers and losses of ``fastai.layers`` that scripts around callbacks use."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

NormType = Enum("NormType", "Batch BatchZero Weight Spectral")


class Lambda(nn.Module):
    """A function as a layer."""

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__()
        self.func = func

    def forward(self, x: Any) -> Any:
        return self.func(x)


class View(nn.Module):
    def __init__(self, *size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x.view(self.size)


class Flatten(nn.Module):
    """All but the batch in one dimension, or with ``full`` all in one."""

    def __init__(self, full: bool = False) -> None:
        super().__init__()
        self.full = full

    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1) if self.full else x.view(x.size(0), -1)


def PoolFlatten() -> nn.Sequential:  # noqa: N802
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), Flatten())


class AdaptiveConcatPool2d(nn.Module):
    """Maxima and means side by side."""

    def __init__(self, sz: Any = None) -> None:
        super().__init__()
        self.output_size = sz or 1
        self.ap, self.mp = nn.AdaptiveAvgPool2d(self.output_size), nn.AdaptiveMaxPool2d(self.output_size)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.mp(x), self.ap(x)], 1)


def bn_drop_lin(n_in: int, n_out: int, bn: bool = True, p: float = 0.0, actn: nn.Module | None = None) -> list[Any]:
    """A norm, a dropout, a linear layer and an activation, as far as wanted."""
    layers: list[Any] = [nn.BatchNorm1d(n_in)] if bn else []
    return [*layers, *([nn.Dropout(p)] if p else []), nn.Linear(n_in, n_out), *([actn] if actn is not None else [])]


def conv_layer(ni: int, nf: int, ks: int = 3, stride: int = 1, padding: int | None = None) -> nn.Sequential:
    """A convolution, an activation and a norm."""
    conv = nn.Conv2d(ni, nf, ks, stride, ks // 2 if padding is None else padding, bias=False)
    return nn.Sequential(conv, nn.ReLU(inplace=True), nn.BatchNorm2d(nf))


class FlattenedLoss:
    """A loss of flattened outputs and targets."""

    def __init__(
        self, func: Any, *args: Any, axis: int = -1, floatify: bool = False, is_2d: bool = True, **kwargs: Any
    ) -> None:
        self.func, self.axis, self.floatify, self.is_2d = func(*args, **kwargs), axis, floatify, is_2d

    @property
    def reduction(self) -> str:
        return str(self.func.reduction)

    @reduction.setter
    def reduction(self, value: str) -> None:
        self.func.reduction = value

    def __call__(self, input: Tensor, target: Tensor, **kwargs: Any) -> Any:
        input, target = input.transpose(self.axis, -1).contiguous(), target.transpose(self.axis, -1).contiguous()
        target = target.float() if self.floatify else target
        return self.func(input.view(-1, input.shape[-1]) if self.is_2d else input.view(-1), target.view(-1), **kwargs)


def _flat(kind: Any, is_2d: bool, axis: int = -1, floatify: bool = True, **options: Any) -> FlattenedLoss:
    return FlattenedLoss(kind, axis=axis, floatify=floatify and not is_2d, is_2d=is_2d, **options)


CrossEntropyFlat = partial(_flat, nn.CrossEntropyLoss, True)
BCEWithLogitsFlat = partial(_flat, nn.BCEWithLogitsLoss, False)
BCEFlat = partial(_flat, nn.BCELoss, False)
MSELossFlat = partial(_flat, nn.MSELoss, False)


class NoopLoss(nn.Module):
    """The mean of the output."""

    def forward(self, output: Tensor, *args: Any) -> Tensor:
        return output.mean()


class LabelSmoothingCrossEntropy(nn.Module):
    """Cross entropy with ``eps`` of each target spread over all classes."""

    def __init__(self, eps: float = 0.1, reduction: str = "mean") -> None:
        super().__init__()
        self.eps, self.reduction = eps, reduction

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target, label_smoothing=self.eps, reduction=self.reduction)
