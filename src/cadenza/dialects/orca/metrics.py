"""Orca's metrics: gathered by ``metric(output, target)`` or ``update``, read by ``compute()``, begun again by
``reset()``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from cadenza.callbacks.measuring.result_packages import counts_by_threshold, roc_auc
from cadenza.dialects.orca.context import invalidInputError

__all__ = [
    "AUC", "AUROC", "MAE", "MSE", "ROC", "Accuracy", "BinaryAccuracy", "BinaryCrossEntropy", "CategoricalAccuracy",
    "CategoricalCrossEntropy", "CustomizedMetric", "F1Score", "KLDivergence", "Metric", "Poisson", "Precision",
    "PrecisionRecallCurve", "PytorchMetric", "Recall", "SparseCategoricalAccuracy", "SparseCategoricalCrossEntropy",
    "Top5Accuracy",
]  # fmt: skip
EPSILON = 1e-7


class Metric:
    """The mean of what ``measure`` gives: of one value for each sample, or one for the batch. The original had a
    description and an object that gathers; here one object is both."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total: Any = 0.0
        self.count = 0

    def update(self, output: Tensor, target: Tensor, *options: Any) -> None:
        values = self.measure(output, target, *options)
        self.total = self.total + values.double().sum()
        self.count += values.numel()

    def __call__(self, preds: Tensor, targets: Tensor, *options: Any) -> None:
        self.update(preds, targets, *options)

    def compute(self) -> Any:
        return torch.as_tensor(self.total) / self.count

    def measure(self, output: Tensor, target: Tensor, *options: Any) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not say what it measures")

    def get_name(self) -> str:
        return type(self).__name__

    def get_pytorch_metric(self) -> Self:
        """One that has gathered nothing."""
        new = copy.copy(self)
        new.reset()
        return new

    @staticmethod
    def convert_metrics_list(metrics: Any, backend: str = "pytorch") -> list[Any]:
        listed = [] if metrics is None else list(metrics) if isinstance(metrics, list | tuple) else [metrics]
        return [one.get_pytorch_metric() if isinstance(one, Metric) else one for one in listed]

    @staticmethod
    def convert_metrics_dict(metrics: Any, backend: str = "pytorch") -> dict[str, Any]:
        """By name; that of a function is its own."""
        return {name_of(one): one for one in Metric.convert_metrics_list(metrics)}


class CustomizedMetric(Metric):
    """The mean over batches of a function of output and target."""

    def __init__(self, compute_function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.compute_function = compute_function

    def get_name(self) -> str:
        return name_of(self.compute_function)

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        return torch.as_tensor(self.compute_function(output, target)).mean()


class BinaryAccuracy(Metric):
    """Outputs are probabilities."""

    def measure(self, output: Tensor, target: Tensor, threshold: float = 0.5) -> Tensor:
        return (output.reshape(target.shape) > threshold) == (target > 0.5)


class Accuracy(Metric):
    """Of classes if the outputs are scores of classes, of numbers above one half otherwise.

    >>> metric = Accuracy()
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    >>> float(metric.compute())
    0.5
    """

    def __init__(self, zero_based_label: bool = True) -> None:
        invalidInputError(zero_based_label, "orca: Accuracy counts classes from 0; subtract 1 from your targets")
        super().__init__()

    def measure(self, output: Tensor, target: Tensor) -> Tensor:
        predicted, actual = classes(output, target)
        return predicted == actual


def _of(name: str, says: str, measure: Callable[[Tensor, Tensor], Tensor]) -> type[Metric]:
    body = {"__doc__": says, "__module__": __name__, "measure": lambda self, output, target: measure(output, target)}
    return type(name, (Metric,), body)


def _is_class(output: Tensor, target: Tensor) -> Tensor:
    return output.argmax(dim=-1) == target.reshape(output.shape[:-1])


def _in_top_5(output: Tensor, target: Tensor) -> Tensor:
    likeliest = output.topk(min(5, output.shape[-1]), dim=-1).indices
    return (likeliest == target.reshape(-1, 1)).any(dim=-1)


def _error(output: Tensor, target: Tensor) -> Tensor:
    return output - target.reshape(output.shape)


def _surprise(output: Tensor) -> Tensor:
    return -output.clamp(EPSILON, 1 - EPSILON).log()


_ROWS, _NUMBERS = "Targets are one-hot rows.", "Targets are numbers of classes."
SparseCategoricalAccuracy = _of("SparseCategoricalAccuracy", _NUMBERS, _is_class)
CategoricalAccuracy = _of("CategoricalAccuracy", _ROWS, lambda output, target: _is_class(output, target.argmax(-1)))
Top5Accuracy = _of("Top5Accuracy", "Whether the class is among the five likeliest.", _in_top_5)
MSE = _of("MSE", "The squared error.", lambda output, target: _error(output, target) ** 2)
MAE = _of("MAE", "The absolute error.", lambda output, target: _error(output, target).abs())
BinaryCrossEntropy = _of("BinaryCrossEntropy", "Of probabilities.", lambda output, target: (
    target * _surprise(output) + (1 - target) * _surprise(1 - output)))  # fmt: skip
CategoricalCrossEntropy = _of("CategoricalCrossEntropy", _ROWS, lambda output, target: (
    target * _surprise(output)).sum(-1))  # fmt: skip
SparseCategoricalCrossEntropy = _of("SparseCategoricalCrossEntropy", _NUMBERS, lambda output, target: (
    _surprise(output).gather(-1, target.reshape(*output.shape[:-1], 1))))  # fmt: skip
KLDivergence = _of("KLDivergence", "Of the rows of two tables of probabilities.", lambda output, target: (
    torch.xlogy(target, target) - torch.xlogy(target, output)).sum(-1))  # fmt: skip
Poisson = _of("Poisson", "", lambda output, target: output - target * (output + EPSILON).log())


class _Ratio(Metric):
    """Counts over all classes together; of two classes, given as probabilities, over the second one alone. ``of`` is
    how much the predicted and the actual ones weigh in what the hits are divided by."""

    of: ClassVar[tuple[float, float]]

    def reset(self) -> None:
        self.hits = self.made = self.real = 0

    def update(self, output: Tensor, target: Tensor) -> None:
        predicted, actual = classes(output, target)
        if output.is_floating_point() and predicted.dtype == torch.bool:
            found = [predicted & (actual > 0), predicted, actual > 0]
        else:
            found = [predicted == actual, torch.ones_like(actual), torch.ones_like(actual)]
        hits, made, real = (int(one.sum()) for one in found)
        self.hits, self.made, self.real = self.hits + hits, self.made + made, self.real + real

    def compute(self) -> Tensor:
        made, real = self.of
        whole = made * self.made + real * self.real
        return torch.tensor(self.hits / whole if whole else 0.0)


class Precision(_Ratio):
    of = (1.0, 0.0)


class Recall(_Ratio):
    of = (0.0, 1.0)


class F1Score(_Ratio):
    of = (0.5, 0.5)


class _Gathered(Metric):
    """Keeps all scores and targets."""

    def reset(self) -> None:
        self.kept: list[tuple[Tensor, Tensor]] = []

    def update(self, output: Tensor, target: Tensor) -> None:
        self.kept.append((output.detach().flatten().cpu(), target.flatten().cpu()))

    def whole(self) -> Iterator[Tensor]:
        return map(torch.cat, zip(*self.kept, strict=True))


class AUC(_Gathered):
    """The area under the ROC curve, without a number of thresholds."""

    def __init__(self, threshold_num: int = 200) -> None:
        super().__init__()

    def compute(self) -> Tensor:
        return torch.tensor(roc_auc(*self.whole()))


class ROC(_Gathered):
    """Rates of false and of true positives, and the thresholds, from the highest on."""

    def compute(self) -> tuple[Tensor, ...]:
        hits, misses, thresholds = counts_by_threshold(*self.whole())
        start, first = hits.new_zeros(1), thresholds[:1] + 1
        rates = (torch.cat([start, counts / counts[-1]]) for counts in (misses, hits))
        return (*rates, torch.cat([first, thresholds]))


class PrecisionRecallCurve(_Gathered):
    """Precision, recall and the thresholds, from that at which the recall is first 1."""

    def compute(self) -> tuple[Tensor, Tensor, Tensor]:
        hits, misses, thresholds = counts_by_threshold(*self.whole())
        until = int((hits < hits[-1]).sum()) + 1
        hits, misses, thresholds = (one[:until].flip(0) for one in (hits, misses, thresholds))
        precision = torch.cat([hits / (hits + misses), hits.new_ones(1)])
        return precision, torch.cat([hits / hits[0], hits.new_zeros(1)]), thresholds


AUROC, PytorchMetric = AUC, Metric
"""As the original's module of gathering objects calls them."""


def classes(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted and actual classes: of scores the highest, of numbers of the target's shape whether each is above one
    half, and classes as they are."""
    output, target = squeezed(output), squeezed(target)
    if output.dim() > target.dim():
        return output.argmax(dim=-1), target
    return (output > 0.5 if output.is_floating_point() else output), target


def squeezed(values: Tensor) -> Tensor:
    """Without trailing dimensions of size 1."""
    while values.dim() > 1 and values.shape[-1] == 1:
        values = values.squeeze(-1)
    return values


def name_of(one: Any) -> str:
    return one.get_name() if isinstance(one, Metric) else str(getattr(one, "__name__", type(one).__name__))
