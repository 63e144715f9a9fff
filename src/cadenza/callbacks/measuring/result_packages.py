"""Results over a whole set of predictions and targets: for classes, for two classes, for numbers, and your own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from cadenza.callbacks.measuring.per_sample import shaped_like
from cadenza.foundation.arguments import check, flags, labels

NAN = float("nan")


class ResultPackage:
    """Some results that are computed together. Override ``compute``; ``a + b`` computes both.

    ``prefix`` is put before every name when the results are logged or merged, so that two packages that compute the
    same can be told apart.

    >>> class Bias(ResultPackage):
    ...     def compute(self, predictions, targets):
    ...         return {"bias": float((predictions - targets).mean())}
    >>> sorted((Bias() + RegressionResults()).compute(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 2.0])))
    ['bias', 'mae', 'mse', 'r2', 'rmse']
    """

    names: ClassVar[tuple[str, ...]] = ()
    """What it computes, as far as that is known before."""

    def __init__(self, *, prefix: str = "") -> None:
        check(isinstance(prefix, str), "prefix is a text", prefix, TypeError)
        self.prefix = prefix

    def compute(self, predictions: Any, targets: Any) -> dict[str, float]:
        """The results by name. ``predictions`` and ``targets`` are those of the whole set, on the CPU."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to compute its results")

    def known_names(self) -> list[str]:
        """The names that are known before anything is computed."""
        return [getattr(self, "prefix", "") + name for name in self.names]

    def __add__(self, other: object) -> MergedResults:
        return MergedResults(self, other) if callable(getattr(other, "compute", None)) else NotImplemented

    def __str__(self) -> str:
        return type(self).__name__


class MergedResults(ResultPackage):
    """Several packages as one. A name that two of them compute is refused."""

    def __init__(self, *packages: Any) -> None:
        super().__init__()
        inner = [one.packages if isinstance(one, MergedResults) else [one] for one in packages]
        self.packages: list[Any] = [one for some in inner for one in some]
        self.known_names()

    def known_names(self) -> list[str]:
        names: list[str] = []
        for package in self.packages:
            known = package.known_names() if isinstance(package, ResultPackage) else []
            self._refuse_clash(names, known, package)
            names += known
        return names

    def compute(self, predictions: Any, targets: Any) -> dict[str, float]:
        merged: dict[str, float] = {}
        for package in self.packages:
            results = named_results(package, predictions, targets)
            self._refuse_clash(merged, results, package)
            merged.update(results)
        return merged

    def _refuse_clash(self, taken: Any, new: Any, package: Any) -> None:
        clash = [name for name in new if name in taken]
        if clash:
            who = type(package).__name__
            raise ValueError(
                f"{clash[0]!r} of {who} is computed by another package, too; give one a prefix: {who}(prefix='...')"
            )

    def __str__(self) -> str:
        return " + ".join(str(package) for package in self.packages)


class ClassificationResults(ResultPackage):
    """``accuracy``, and ``precision``, ``recall`` and ``f1``, each the mean over classes (macro).

    Predictions are scores (N, C, ...), of which the highest counts, or classes of the shape of the targets; targets are
    classes, or scores like the predictions. Classes that occur neither in the predictions nor in the targets are left
    out of the means; what would divide by zero is 0. With ``per_class=True`` there are ``precision/<class>``,
    ``recall/<class>`` and ``f1/<class>`` as well, under numbers or ``class_names``. If a score is NaN, so is every
    result.

    >>> scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.7, 0.3]])
    >>> ClassificationResults().compute(scores, torch.tensor([0, 1, 0, 1]))["accuracy"]
    0.75
    """

    names = ("accuracy", "precision", "recall", "f1")

    def __init__(self, *, per_class: bool = False, class_names: Sequence[str] | None = None, prefix: str = "") -> None:
        super().__init__(prefix=prefix)
        flags(per_class=per_class)
        self.per_class = per_class or class_names is not None
        self.class_names = None if class_names is None else labels("class_names", class_names)

    def compute(self, predictions: Tensor, targets: Tensor) -> dict[str, float]:
        n, predicted, actual, undefined = self._classes(predictions, targets)
        hits = torch.bincount(predicted[predicted == actual], minlength=n).double()
        made, real = (torch.bincount(classes, minlength=n).double() for classes in (predicted, actual))
        each = {
            "precision": _ratio(hits, made),
            "recall": _ratio(hits, real),
            "f1": _ratio(2 * hits, made + real),
        }
        present = (made + real) > 0
        found = {"accuracy": float(hits.sum()) / len(actual)}
        found |= {name: float(values[present].mean()) for name, values in each.items()}
        if self.per_class:
            names = self._names(n)
            found |= {f"{name}/{names[i]}": float(values[i]) for name, values in each.items() for i in range(n)}
        return {name: NAN if undefined else value for name, value in found.items()}

    def _classes(self, predictions: Tensor, targets: Tensor) -> tuple[int, Tensor, Tensor, bool]:
        _refuse_unless_tensors(self, predictions, targets)
        n, undefined = 0, False
        if predictions.is_floating_point():
            undefined = bool(predictions.isnan().any())
            if targets.shape == predictions.shape and targets.is_floating_point():
                targets = targets.argmax(1)
            if predictions.dim() < 2:
                raise ValueError(
                    f"{self} needs scores (N, classes) or whole classes, not {predictions.dtype} of shape "
                    f"{tuple(predictions.shape)}; for a single score use BinaryResults"
                )
            n, predictions = predictions.shape[1], predictions.argmax(1)
        if predictions.shape != targets.shape or not targets.numel():
            raise ValueError(
                f"{self}: predicted classes of shape {tuple(predictions.shape)} and targets of shape "
                f"{tuple(targets.shape)} do not match"
            )
        predicted, actual = predictions.flatten().long(), targets.flatten().long()
        low, high = int(min(predicted.min(), actual.min())), int(max(predicted.max(), actual.max()))
        if low < 0:
            raise ValueError(f"{self}: classes are numbers from 0 on, but there is {low}")
        return max(n, high + 1, len(self.class_names or ())), predicted, actual, undefined

    def _names(self, n: int) -> list[str]:
        if self.class_names is None:
            return [str(number) for number in range(n)]
        if len(self.class_names) != n:
            raise ValueError(f"{self}: there are {n} classes, but {len(self.class_names)} class_names")
        return self.class_names


class BinaryResults(ResultPackage):
    """``accuracy``, ``precision``, ``recall``, ``f1``, ``roc_auc`` and ``average_precision`` for two classes.

    Targets are 0 and 1. Predictions are one score a sample, or two, for class 0 and class 1, whose difference is the
    score. A sample is predicted to be of class 1 if its score is above ``threshold``: 0 is right for logits and for two
    scores, 0.5 for a single probability. What would divide by zero is 0; where one of the classes does not occur,
    ``roc_auc`` is NaN, and without class 1 ``average_precision`` too. If a score is NaN, so is every result.

    >>> logits = torch.tensor([-2.0, 0.5, -0.5, 3.0])
    >>> BinaryResults().compute(logits, torch.tensor([0, 0, 1, 1]))["roc_auc"]
    0.75
    """

    names = ("accuracy", "precision", "recall", "f1", "roc_auc", "average_precision")

    def __init__(self, threshold: float = 0.0, *, prefix: str = "") -> None:
        super().__init__(prefix=prefix)
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or threshold != threshold:
            raise ValueError(f"threshold is a number, such as 0 for logits or 0.5 for probabilities, not {threshold!r}")
        self.threshold = threshold

    def compute(self, predictions: Tensor, targets: Tensor) -> dict[str, float]:
        scores, actual = self._scores(predictions, targets)
        if bool(scores.isnan().any()):
            return dict.fromkeys(self.names, NAN)
        predicted = scores > self.threshold
        hits, made, real = (float(some.sum()) for some in (predicted & actual, predicted, actual))
        values = (
            float((predicted == actual).double().mean()),
            hits / made if made else 0.0,
            hits / real if real else 0.0,
            2 * hits / (made + real) if made + real else 0.0,
            roc_auc(scores, actual),
            average_precision(scores, actual),
        )
        return dict(zip(self.names, values, strict=True))

    def _scores(self, predictions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        _refuse_unless_tensors(self, predictions, targets)
        targets = targets.flatten()
        if predictions.dim() == 2 and predictions.shape[1] == 2:
            predictions = predictions[:, 1].double() - predictions[:, 0].double()
        scores = predictions.flatten().double()
        if scores.shape != targets.shape or not targets.numel():
            raise ValueError(
                f"{self}: it needs one score a sample, or two; there are predictions of shape "
                f"{tuple(predictions.shape)} and targets of shape {tuple(targets.shape)}"
            )
        if not bool(((targets == 0) | (targets == 1)).all()):
            raise ValueError(f"{self}: targets are 0 or 1")
        return scores, targets == 1


class RegressionResults(ResultPackage):
    """``mae``, ``mse``, ``rmse`` and ``r2``; for several numbers a sample, each is the mean over them.

    A constant target that is met has an ``r2`` of 1, one that is not has 0.

    >>> RegressionResults().compute(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 2.0, 3.0]))["r2"]
    0.5
    """

    names = ("mae", "mse", "rmse", "r2")

    def compute(self, predictions: Tensor, targets: Tensor) -> dict[str, float]:
        _refuse_unless_tensors(self, predictions, targets)
        predictions = shaped_like(predictions, targets)
        if not targets.numel():
            raise ValueError(f"{self}: there are no targets")
        predictions, targets = (values.double().reshape(len(targets), -1) for values in (predictions, targets))
        errors = predictions - targets
        squares = errors.square().mean(0)
        spread = (targets - targets.mean(0)).square().mean(0)
        r2 = torch.where(spread > 0, 1 - squares / spread.where(spread > 0, 1.0), (squares == 0).double())
        values = (errors.abs().mean(), squares.mean(), squares.sqrt().mean(), r2.mean())
        return {name: float(value) for name, value in zip(self.names, values, strict=True)}


READY = (ClassificationResults, BinaryResults, RegressionResults)
"""The packages whose names are known before anything is computed; ``/<class>`` may follow them."""


def named_results(package: Any, predictions: Any, targets: Any) -> dict[str, float]:
    """What ``package`` computes, under the names with its prefix, if it has one."""
    prefix = getattr(package, "prefix", "")
    return {prefix + name: value for name, value in package.compute(predictions, targets).items()}


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole.clamp(min=1), 0.0)


def _refuse_unless_tensors(package: ResultPackage, predictions: Any, targets: Any) -> None:
    for what, value in (("predictions", predictions), ("targets", targets)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{package} needs {what} as one tensor, not {type(value).__name__}; Evaluate(prepare=...)")


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
