"""Result packages: what predictions are worth, computed over a whole set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from cadenza.callbacks.results import BinaryResults, ClassificationResults, RegressionResults

__all__ = [
    "AbstractResultPackage",
    "BinaryClassificationResultPackage",
    "ClassificationResultPackage",
    "GeneralResultPackage",
    "MultipleResultPackageWrapper",
    "PreCalculatedResultPackage",
    "RegressionResultPackage",
]


class AbstractResultPackage(ABC):
    """Results by name, computed from predictions and targets. Override ``prepare_results_dict``.

    >>> class Bias(AbstractResultPackage):
    ...     def prepare_results_dict(self):
    ...         return {"bias": float((self.y_predicted - self.y_true).mean())}
    >>> package = Bias()
    >>> package.prepare_result_package(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    >>> package.get_results()
    {'bias': 1.0}
    """

    def __init__(self, pkg_name: str | None = None, strict_content_check: bool = False, **kwargs: Any) -> None:
        self.pkg_name = pkg_name
        self.strict_content_check = strict_content_check
        self.package_metadata = kwargs
        self.y_true: Any = None
        self.y_predicted: Any = None
        self.hyperparameters: Mapping[str, Any] | None = None
        self.additional_results: dict[str, Any] = {}
        self.results_dict: dict[str, Any] | None = None

    def prepare_result_package(
        self, y_true: Any, y_predicted: Any, hyperparameters: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Computes the results and keeps them."""
        self.y_true, self.y_predicted, self.hyperparameters = y_true, y_predicted, hyperparameters
        self.additional_results = kwargs
        self.results_dict = self.prepare_results_dict()

    @abstractmethod
    def prepare_results_dict(self) -> dict[str, Any]:
        """The results by name, from ``self.y_true`` and ``self.y_predicted``."""

    def get_results(self) -> dict[str, Any]:
        if self.results_dict is None:
            raise RuntimeError(f"{type(self).__name__} has computed nothing yet; call prepare_result_package first")
        return self.results_dict

    def get_hyperparameters(self) -> Mapping[str, Any] | None:
        return self.hyperparameters

    def __add__(self, other: AbstractResultPackage | Mapping[str, Any]) -> MultipleResultPackageWrapper:
        more = PreCalculatedResultPackage(other) if isinstance(other, Mapping) else other
        return MultipleResultPackageWrapper([*_parts(self), *_parts(more)])

    def __iadd__(self, other: Mapping[str, Any]) -> AbstractResultPackage:  # type: ignore[misc]
        """Adds results that were computed elsewhere; a name that is there already is refused."""
        self.results_dict = merged([self.get_results(), dict(other)])
        return self


class MultipleResultPackageWrapper(AbstractResultPackage):
    """Several packages as one. A name that two of them compute is refused."""

    def __init__(self, result_packages: list[AbstractResultPackage]) -> None:
        super().__init__(" + ".join(one.pkg_name or type(one).__name__ for one in result_packages))
        self.result_packages = result_packages

    def prepare_results_dict(self) -> dict[str, Any]:
        for package in self.result_packages:
            package.prepare_result_package(
                self.y_true, self.y_predicted, self.hyperparameters, **self.additional_results
            )
        return merged([package.get_results() for package in self.result_packages])


class PreCalculatedResultPackage(AbstractResultPackage):
    """Results that were computed elsewhere."""

    def __init__(self, results_dict: Mapping[str, Any], strict_content_check: bool = False) -> None:
        super().__init__("PreCalculated", strict_content_check)
        self.given = dict(results_dict)

    def prepare_results_dict(self) -> dict[str, Any]:
        return dict(self.given)


class GeneralResultPackage(AbstractResultPackage):
    """Metrics as functions ``f(y_true, y_predicted)``, each under its own name."""

    def __init__(self, metrics_list: list[Any], strict_content_check: bool = False) -> None:
        super().__init__("General", strict_content_check)
        self.metrics_list = metrics_list

    def prepare_results_dict(self) -> dict[str, Any]:
        return merged([{metric.__name__: metric(self.y_true, self.y_predicted)} for metric in self.metrics_list])


class ClassificationResultPackage(AbstractResultPackage):
    """Accuracy over classes."""

    def __init__(self, strict_content_check: bool = False) -> None:
        super().__init__("Classification", strict_content_check)

    def prepare_results_dict(self) -> dict[str, Any]:
        found = ClassificationResults().compute(torch.as_tensor(self.y_predicted), torch.as_tensor(self.y_true))
        return {"Accuracy": found["accuracy"]}


class BinaryClassificationResultPackage(AbstractResultPackage):
    """Accuracy, areas under the curves, F1, precision and recall for two classes."""

    def __init__(self, positive_class_thresh: float = 0.5, strict_content_check: bool = False) -> None:
        super().__init__("BinaryClassification", strict_content_check)
        self.positive_class_thresh = positive_class_thresh

    def prepare_results_dict(self) -> dict[str, Any]:
        package = BinaryResults(self.positive_class_thresh)
        found = package.compute(torch.as_tensor(self.y_predicted), torch.as_tensor(self.y_true))
        names = {
            "Accuracy": "accuracy",
            "ROC_AUC": "roc_auc",
            "PrecisionRecall_AUC": "average_precision",
            "F1_score": "f1",
            "Precision": "precision",
            "Recall": "recall",
        }
        return {name: found[ours] for name, ours in names.items()}


class RegressionResultPackage(AbstractResultPackage):
    """Mean squared and mean absolute error."""

    def __init__(self, strict_content_check: bool = False) -> None:
        super().__init__("Regression", strict_content_check)

    def prepare_results_dict(self) -> dict[str, Any]:
        found = RegressionResults().compute(torch.as_tensor(self.y_predicted), torch.as_tensor(self.y_true))
        return {"Mean_squared_error": found["mse"], "Mean_absolute_error": found["mae"]}


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
