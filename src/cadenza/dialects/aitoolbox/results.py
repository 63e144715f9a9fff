"""Result packages: what predictions are worth, computed over a whole set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from cadenza.dialects.aitoolbox.core_metrics import (
    AccuracyMetric,
    F1ScoreMetric,
    MeanAbsoluteErrorMetric,
    MeanSquaredErrorMetric,
    PrecisionRecallCurveAUCMetric,
    ROCAUCMetric,
    as_array,
)

__all__ = [
    "AbstractResultPackage", "BinaryClassificationResultPackage", "ClassificationResultPackage", "GeneralResultPackage",
    "MultipleResultPackageWrapper", "PreCalculatedResultPackage", "RegressionResultPackage",
]  # fmt: skip


class AbstractResultPackage(ABC):
    """Results by name, computed from predictions and targets. Override ``prepare_results_dict``.

    >>> class Bias(AbstractResultPackage):
    ...     def prepare_results_dict(self):
    ...         return {"bias": float((self.y_predicted - self.y_true).mean())}
    >>> package = Bias()
    >>> package.prepare_result_package([0.0, 1.0], [1.0, 2.0])
    >>> package.get_results()
    {'bias': 1.0}
    """

    def __init__(
        self, pkg_name: str | None = None, strict_content_check: bool = False, np_array: bool = True, **kwargs: Any
    ) -> None:
        self.pkg_name = pkg_name
        self.strict_content_check, self.np_array = strict_content_check, np_array
        self.package_metadata = kwargs
        self.y_true: Any = None
        self.y_predicted: Any = None
        self.hyperparameters: Mapping[str, Any] | None = None
        self.additional_results: dict[str, Any] = {}
        self.results_dict: dict[str, Any] | None = None

    def prepare_result_package(
        self, y_true: Any, y_predicted: Any, hyperparameters: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Computes the results and keeps them. Unless ``np_array`` is off, targets and predictions become arrays."""
        as_given = as_array if self.np_array else lambda values: values
        self.y_true, self.y_predicted, self.hyperparameters = as_given(y_true), as_given(y_predicted), hyperparameters
        self.additional_results = kwargs
        self.results_dict = self.prepare_results_dict()

    def prepare_from(
        self, predicted: tuple[Any, Any, dict[str, Any]], hyperparameters: Mapping[str, Any] | None, history: Any
    ) -> None:
        """Computes the results of what a loop has predicted."""
        predictions, targets, metadata = predicted
        self.prepare_result_package(
            targets, predictions, hyperparameters, training_history=history, additional_results=metadata
        )

    @abstractmethod
    def prepare_results_dict(self) -> dict[str, Any]:
        """The results by name, from ``self.y_true`` and ``self.y_predicted``."""

    def get_results(self) -> dict[str, Any] | None:
        return self.results_dict

    def get_hyperparameters(self) -> Mapping[str, Any] | None:
        return self.hyperparameters

    def _computed(self) -> dict[str, Any]:
        if self.results_dict is None:
            raise ValueError(f"{type(self).__name__} has computed nothing yet; call prepare_result_package first")
        return self.results_dict

    def __len__(self) -> int:
        return len(self._computed())

    def __contains__(self, name: object) -> bool:
        return name in self._computed()

    def __getitem__(self, name: str) -> Any:
        return self._computed()[name]

    def __str__(self) -> str:
        return f"{self.pkg_name}: {self.results_dict}"

    def __add__(self, other: AbstractResultPackage | Mapping[str, Any]) -> MultipleResultPackageWrapper:
        """The results of both, each under the name of its package. Both must have computed them."""
        more = other if isinstance(other, AbstractResultPackage) else PreCalculatedResultPackage(other)
        whole = MultipleResultPackageWrapper()
        whole.prepare_result_package([*_parts(self), *_parts(more)], self.hyperparameters)
        return whole

    def __iadd__(self, other: AbstractResultPackage | Mapping[str, Any]) -> AbstractResultPackage:
        """Adds results that were computed elsewhere; a name that is there already is refused."""
        more = other._computed() if isinstance(other, AbstractResultPackage) else dict(other)
        self.results_dict = merged([self._computed(), more])
        return self


class MultipleResultPackageWrapper(AbstractResultPackage):
    """Several packages as one: what each has computed, under its name."""

    def __init__(self, strict_content_check: bool = False, **kwargs: Any) -> None:
        super().__init__("MultipleResultPackageWrapper", strict_content_check, **kwargs)
        self.result_packages: list[AbstractResultPackage] = []

    def prepare_result_package(  # type: ignore[override]
        self, result_packages: list[AbstractResultPackage], hyperparameters: Any = None, **kwargs: Any
    ) -> None:
        self.result_packages, self.hyperparameters, self.additional_results = result_packages, hyperparameters, kwargs
        self.results_dict = self.prepare_results_dict()

    def prepare_results_dict(self) -> dict[str, Any]:
        return merged([{str(package.pkg_name): package._computed()} for package in self.result_packages])


class PreCalculatedResultPackage(AbstractResultPackage):
    """Results that were computed elsewhere."""

    def __init__(
        self, results_dict: Mapping[str, Any], strict_content_check: bool = False, np_array: bool = True
    ) -> None:
        super().__init__("PreCalculatedResult", strict_content_check, np_array)
        self.results_dict = dict(results_dict)

    def prepare_results_dict(self) -> dict[str, Any]:
        return self._computed()


class GeneralResultPackage(AbstractResultPackage):
    """Metrics of ``core_metrics``, which are called with targets and predictions, or functions, each under its name."""

    def __init__(self, metrics_list: list[Any], strict_content_check: bool = False, np_array: bool = True) -> None:
        super().__init__("GeneralResult", strict_content_check, np_array)
        self.metrics_list = metrics_list

    def prepare_results_dict(self) -> dict[str, Any]:
        found = [(metric, metric(self.y_true, self.y_predicted)) for metric in self.metrics_list]
        return merged(
            [one.get_metric_dict() if isinstance(metric, type) else {metric.__name__: one} for metric, one in found]
        )


class ClassificationResultPackage(AbstractResultPackage):
    """Accuracy over classes."""

    def __init__(self, strict_content_check: bool = False, np_array: bool = True) -> None:
        super().__init__("ClassificationResult", strict_content_check, np_array)

    def prepare_results_dict(self) -> dict[str, Any]:
        return AccuracyMetric(self.y_true, self.y_predicted, positive_class_thresh=None).get_metric_dict()


class BinaryClassificationResultPackage(AbstractResultPackage):
    """F1, areas under the curves and accuracy for two classes."""

    def __init__(
        self, positive_class_thresh: float = 0.5, strict_content_check: bool = False, np_array: bool = True
    ) -> None:
        super().__init__("BinaryClassificationResult", strict_content_check, np_array)
        self.positive_class_thresh = positive_class_thresh

    def prepare_results_dict(self) -> dict[str, Any]:
        given, bound = (self.y_true, self.y_predicted), self.positive_class_thresh
        return (F1ScoreMetric(*given, bound) + PrecisionRecallCurveAUCMetric(*given)) | (
            AccuracyMetric(*given, bound) + ROCAUCMetric(*given)
        )


class RegressionResultPackage(AbstractResultPackage):
    """Mean squared and mean absolute error."""

    def __init__(self, strict_content_check: bool = False, np_array: bool = True) -> None:
        super().__init__("RegressionResult", strict_content_check, np_array)

    def prepare_results_dict(self) -> dict[str, Any]:
        given = (self.y_true, self.y_predicted)
        return MeanSquaredErrorMetric(*given) + MeanAbsoluteErrorMetric(*given)


def _parts(package: AbstractResultPackage) -> list[AbstractResultPackage]:
    return package.result_packages if isinstance(package, MultipleResultPackageWrapper) else [package]


def merged(results: list[dict[str, Any]]) -> dict[str, Any]:
    """All results in one dict; a name that stands in two of them is refused."""
    whole: dict[str, Any] = {}
    for some in results:
        twice = sorted(whole.keys() & some.keys())
        if twice:
            raise ValueError(f"the result {twice[0]!r} is computed by two packages; leave one of them out")
        whole.update(some)
    return whole
