"""Metrics as objects: one number from targets and predictions, which can be compared and added to others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import total_ordering
from typing import Any

import torch
from torch import Tensor

from cadenza.callbacks.measuring.ranking import counts_by_threshold
from cadenza.callbacks.measuring.result_packages import BinaryResults, RegressionResults
from cadenza.dialects.numeric import numpy

__all__ = [
    "AbstractBaseMetric", "AccuracyMetric", "F1ScoreMetric", "MeanAbsoluteErrorMetric", "MeanSquaredErrorMetric",
    "PrecisionMetric", "PrecisionRecallCurveAUCMetric", "ROCAUCMetric", "RecallMetric",
]  # fmt: skip


def as_array(values: Any) -> Any:
    """``values`` as an array of NumPy."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else numpy.asarray(values)


@total_ordering
class AbstractBaseMetric(ABC):
    """A metric. Override ``calculate_metric``, which sets ``self.metric_result``.

    >>> AccuracyMetric([0, 1, 1], [0.2, 0.7, 0.1]) > 0.5
    True
    """

    def __init__(self, y_true: Any, y_predicted: Any, metric_name: str, np_array: bool = True) -> None:
        self.y_true, self.y_predicted = (as_array(one) if np_array else one for one in (y_true, y_predicted))
        self.metric_name = metric_name
        self.metric_result: Any = None
        self.calculate_metric()

    @abstractmethod
    def calculate_metric(self) -> None:
        """Computes ``self.metric_result`` from ``self.y_true`` and ``self.y_predicted``."""

    def get_metric(self) -> Any:
        return self.metric_result

    def get_metric_dict(self) -> dict[str, Any]:
        return {self.metric_name: self.metric_result}

    def __str__(self) -> str:
        return f"{self.metric_name}: {self.metric_result}"

    def __eq__(self, other: object) -> bool:
        return bool(self.metric_result == getattr(other, "metric_result", other))

    def __lt__(self, other: Any) -> bool:
        return bool(self.metric_result < getattr(other, "metric_result", other))

    __hash__ = object.__hash__

    def __contains__(self, name: object) -> bool:
        return name in self.get_metric_dict()

    def __getitem__(self, name: str) -> Any:
        return self.get_metric_dict()[name]

    def __add__(self, other: AbstractBaseMetric | dict[str, Any]) -> dict[str, Any]:
        return self.get_metric_dict() | (other if isinstance(other, dict) else other.get_metric_dict())

    __radd__ = concat_metric = __add__

    def __len__(self) -> int:
        return 1


class AccuracyMetric(AbstractBaseMetric):
    """The share of samples of which the class is predicted. Several scores a sample are those of the classes; a single
    one is class 1 from the threshold on, unless the scores exceed 1 or the threshold is None."""

    def __init__(self, y_true: Any, y_predicted: Any, positive_class_thresh: float | None = 0.5) -> None:
        self.positive_class_thresh = positive_class_thresh
        super().__init__(y_true, y_predicted, "Accuracy")

    def calculate_metric(self) -> None:
        predicted, bound = self.y_predicted, self.positive_class_thresh
        if predicted.ndim > 1:
            predicted = predicted.argmax(1)
        elif bound is not None and predicted.max() <= 1:
            predicted = predicted >= bound
        self.metric_result = float((predicted == self.y_true).mean())


class OfResults(AbstractBaseMetric):
    """One of the numbers that a native package of results computes."""

    name, key = "", ""

    def __init__(self, y_true: Any, y_predicted: Any, positive_class_thresh: float = 0.5) -> None:
        self.positive_class_thresh = positive_class_thresh
        super().__init__(y_true, y_predicted, self.name)

    def calculate_metric(self) -> None:
        numbers = self.key in RegressionResults.names
        package = RegressionResults() if numbers else BinaryResults(self.positive_class_thresh)
        found = package.compute(torch.as_tensor(self.y_predicted), torch.as_tensor(self.y_true))
        self.metric_result = found[self.key]


class ROCAUCMetric(OfResults):
    name, key = "ROC_AUC", "roc_auc"


class F1ScoreMetric(OfResults):
    name, key = "F1_score", "f1"


class PrecisionMetric(OfResults):
    name, key = "Precision", "precision"


class RecallMetric(OfResults):
    name, key = "Recall", "recall"


class MeanSquaredErrorMetric(OfResults):
    name, key = "Mean_squared_error", "mse"


class MeanAbsoluteErrorMetric(OfResults):
    name, key = "Mean_absolute_error", "mae"


class PrecisionRecallCurveAUCMetric(OfResults):
    """The area under straight lines between the points of the curve, which begins with a precision of 1."""

    name = "PrecisionRecall_AUC"

    def calculate_metric(self) -> None:
        hits, misses, _ = counts_by_threshold(torch.as_tensor(self.y_predicted), torch.as_tensor(self.y_true))
        precision, recall = (hits / (hits + misses)).tolist(), (hits / hits[-1]).tolist()
        self.metric_result = float(numpy.trapezoid([1.0, *precision], [0.0, *recall]))
