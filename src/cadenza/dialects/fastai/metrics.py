"""fastai's metrics: functions of output and target, and callbacks that look at a whole validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cadenza.dialects.fastai.callback import Callback, add_metrics

__all__ = [
    "AUROC",
    "RMSE",
    "ConfusionMatrix",
    "ExpRMSPE",
    "ExplainedVariance",
    "FBeta",
    "KappaScore",
    "MatthewsCorreff",
    "Perplexity",
    "Precision",
    "R2Score",
    "Recall",
    "RegMetrics",
    "accuracy",
    "accuracy_thresh",
    "error_rate",
    "mean_absolute_error",
    "mean_squared_error",
    "root_mean_squared_error",
    "top_k_accuracy",
]


def accuracy(input: Tensor, targs: Tensor) -> Tensor:
    """The share of samples whose likeliest class is the target.

    >>> accuracy(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    tensor(0.5000)
    """
    return (input.argmax(dim=-1).flatten() == targs.flatten()).float().mean()


def error_rate(input: Tensor, targs: Tensor) -> Tensor:
    return 1 - accuracy(input, targs)


def accuracy_thresh(y_pred: Tensor, y_true: Tensor, thresh: float = 0.5, sigmoid: bool = True) -> Tensor:
    scores = y_pred.sigmoid() if sigmoid else y_pred
    return ((scores > thresh) == y_true.bool()).float().mean()


def top_k_accuracy(input: Tensor, targs: Tensor, k: int = 5) -> Tensor:
    likeliest = input.topk(min(k, input.shape[-1]), dim=-1).indices
    return (likeliest == targs.unsqueeze(-1)).any(dim=-1).float().mean()


def mean_squared_error(pred: Tensor, targ: Tensor) -> Tensor:
    return (pred.flatten() - targ.flatten()).pow(2).mean()


def mean_absolute_error(pred: Tensor, targ: Tensor) -> Tensor:
    return (pred.flatten() - targ.flatten()).abs().mean()


def root_mean_squared_error(pred: Tensor, targ: Tensor) -> Tensor:
    return mean_squared_error(pred, targ).sqrt()


class RegMetrics(Callback):
    """Gathers outputs and targets of a validation; ``measure`` makes one number of them."""

    def on_epoch_begin(self, **kwargs: Any) -> None:
        self.preds: list[Tensor] = []
        self.targs: list[Tensor] = []

    def on_batch_end(self, last_output: Tensor, last_target: Tensor, train: bool, **kwargs: Any) -> None:
        if not train:
            self.preds.append(last_output.detach().float().cpu())
            self.targs.append(last_target.detach().cpu())

    def on_epoch_end(self, last_metrics: Sequence[Any], **kwargs: Any) -> Any:
        if not self.preds:
            return None
        return add_metrics(last_metrics, self.measure(torch.cat(self.preds), torch.cat(self.targs)))

    def measure(self, preds: Tensor, targs: Tensor) -> Tensor:
        raise NotImplementedError


class R2Score(RegMetrics):
    def measure(self, preds: Tensor, targs: Tensor) -> Tensor:
        preds, targs = preds.flatten(), targs.flatten()
        return 1 - (targs - preds).pow(2).sum() / (targs - targs.mean()).pow(2).sum()


class ExplainedVariance(RegMetrics):
    def measure(self, preds: Tensor, targs: Tensor) -> Tensor:
        preds, targs = preds.flatten(), targs.flatten()
        return 1 - (targs - preds).var() / targs.var()


class RMSE(RegMetrics):
    def measure(self, preds: Tensor, targs: Tensor) -> Tensor:
        return root_mean_squared_error(preds, targs)


class ExpRMSPE(RegMetrics):
    """Of values whose logarithms are predicted: the root mean of squared relative errors."""

    def measure(self, preds: Tensor, targs: Tensor) -> Tensor:
        preds, targs = preds.flatten().exp(), targs.flatten().exp()
        return ((targs - preds) / targs).pow(2).mean().sqrt()


class Perplexity(RegMetrics):
    """The exponential of the mean cross entropy."""

    def measure(self, preds: Tensor, targs: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(preds.flatten(0, -2), targs.flatten()).exp()


class AUROC(RegMetrics):
    """The area under the curve of true over false positives, for two classes."""

    def measure(self, preds: Tensor, targs: Tensor) -> Tensor:
        scores = preds.softmax(-1)[:, 1] if preds.dim() > 1 else preds
        positive, negative = scores[targs == 1], scores[targs != 1]
        pairs = positive.unsqueeze(1) - negative.unsqueeze(0)
        return ((pairs > 0).float() + 0.5 * (pairs == 0).float()).mean()


class ConfusionMatrix(RegMetrics):
    """Counts by target (rows) and predicted class (columns), in ``cm``."""

    def measure(self, preds: Tensor, targs: Tensor) -> Any:
        classes = preds.shape[-1]
        self.cm = torch.bincount(targs.flatten() * classes + preds.argmax(-1).flatten(), minlength=classes**2)
        self.cm = self.cm.reshape(classes, classes).double()
        return self.of_matrix(self.cm)

    def of_matrix(self, cm: Tensor) -> Any:
        return cm


class _Averaged(ConfusionMatrix):
    def __init__(self, average: str = "binary", pos_label: int = 1, beta: float = 2.0) -> None:
        if average not in ("binary", "macro", "micro", "weighted"):
            raise ValueError(f"fastai: average is binary, macro, micro or weighted, not {average!r}")
        self.average, self.pos_label, self.beta = average, pos_label, beta

    def averaged(self, cm: Tensor, values: Tensor) -> Tensor:
        values = values.nan_to_num(0.0)
        if self.average == "binary":
            return values[self.pos_label]
        if self.average == "micro":
            return cm.diag().sum() / cm.sum()
        weights = cm.sum(1) / cm.sum() if self.average == "weighted" else torch.full_like(values, 1 / len(values))
        return (values * weights).sum()


class Precision(_Averaged):
    def of_matrix(self, cm: Tensor) -> Tensor:
        return self.averaged(cm, cm.diag() / cm.sum(0))


class Recall(_Averaged):
    def of_matrix(self, cm: Tensor) -> Tensor:
        return self.averaged(cm, cm.diag() / cm.sum(1))


class FBeta(_Averaged):
    def of_matrix(self, cm: Tensor) -> Tensor:
        precision, recall = cm.diag() / cm.sum(0), cm.diag() / cm.sum(1)
        square = self.beta**2
        return self.averaged(cm, (1 + square) * precision * recall / (square * precision + recall))


class KappaScore(ConfusionMatrix):
    """Agreement beyond chance."""

    def of_matrix(self, cm: Tensor) -> Tensor:
        expected = torch.outer(cm.sum(1), cm.sum(0)) / cm.sum()
        return 1 - (cm.sum() - cm.diag().sum()) / (expected.sum() - expected.diag().sum())


class MatthewsCorreff(ConfusionMatrix):
    """The correlation of predicted and true classes."""

    def of_matrix(self, cm: Tensor) -> Tensor:
        true, predicted, total = cm.sum(1), cm.sum(0), cm.sum()
        over = cm.diag().sum() * total - true @ predicted
        return over / ((total**2 - predicted @ predicted) * (total**2 - true @ true)).sqrt()
