"""fastai's metrics: functions of output and target, and callbacks that look at a whole validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cadenza.callbacks.measuring.confusion import confusion_matrix
from cadenza.dialects.fastai.callback import Callback
from cadenza.dialects.fastai.torch_core import add_metrics

__all__ = [
    "AUROC", "RMSE", "ConfusionMatrix", "ExpRMSPE", "ExplainedVariance", "FBeta", "KappaScore", "MatthewsCorreff",
    "MultiLabelFbeta", "Perplexity", "Precision", "R2Score", "Recall", "RegMetrics", "accuracy", "accuracy_thresh",
    "auc_roc_score", "dice", "error_rate", "exp_rmspe", "explained_variance", "fbeta", "foreground_acc", "mae",
    "mean_absolute_error", "mean_squared_error", "mean_squared_logarithmic_error", "mse", "msle", "r2_score", "rmse",
    "roc_curve", "root_mean_squared_error", "top_k_accuracy",
]  # fmt: skip


def accuracy(input: Tensor, targs: Tensor) -> Tensor:
    """The share of samples whose likeliest class is the target.

    >>> accuracy(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    tensor(0.5000)
    """
    return (input.argmax(dim=-1).flatten() == targs.flatten()).float().mean()


def foreground_acc(input: Tensor, target: Tensor, void_code: int) -> Tensor:
    """The accuracy over all pixels whose class is not ``void_code``."""
    target = target.squeeze(1)
    shown = target != void_code
    return (input.argmax(dim=1)[shown] == target[shown]).float().mean()


def dice(input: Tensor, targs: Tensor, iou: bool = False, eps: float = 1e-8) -> Tensor:
    """How much of the pixels of class 1 two masks share; with ``iou``, of all that either has."""
    found, true = input.argmax(dim=1).flatten(1), targs.flatten(1)
    both, each = (found * true).sum(1).float(), (found + true).sum(1).float()
    shares = both / (each - both + eps) if iou else 2 * both / each
    return torch.where(each == 0, torch.ones_like(shares), shares).mean()


def fbeta(
    y_pred: Tensor, y_true: Tensor, thresh: float = 0.2, beta: float = 2, eps: float = 1e-9, sigmoid: bool = True
) -> Tensor:
    """The F-beta of several labels, averaged over samples."""
    found = ((y_pred.sigmoid() if sigmoid else y_pred) > thresh).float()
    return _fbeta(found, y_true.float(), 1, beta, eps).mean()


def _fbeta(found: Tensor, true: Tensor, dim: int, beta: float, eps: float) -> Tensor:
    both = (found * true).sum(dim)
    precision, recall = both / (found.sum(dim) + eps), both / (true.sum(dim) + eps)
    return (1 + beta**2) * precision * recall / (beta**2 * precision + recall + eps)


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


def mean_squared_logarithmic_error(pred: Tensor, targ: Tensor) -> Tensor:
    return mean_squared_error(pred.log1p(), targ.log1p())


def exp_rmspe(pred: Tensor, targ: Tensor) -> Tensor:
    """Of values whose logarithms are predicted: the root mean of squared relative errors."""
    pred, targ = pred.flatten().exp(), targ.flatten().exp()
    return ((targ - pred) / targ).pow(2).mean().sqrt()


def explained_variance(pred: Tensor, targ: Tensor) -> Tensor:
    return 1 - (targ.flatten() - pred.flatten()).var() / targ.var()


def r2_score(pred: Tensor, targ: Tensor) -> Tensor:
    pred, targ = pred.flatten(), targ.flatten()
    return 1 - (targ - pred).pow(2).sum() / (targ - targ.mean()).pow(2).sum()


mse, mae, rmse, msle = (
    mean_squared_error, mean_absolute_error, root_mean_squared_error, mean_squared_logarithmic_error,
)  # fmt: skip


def roc_curve(input: Tensor, targ: Tensor) -> tuple[Tensor, Tensor]:
    """The false and true positive rates, from the strictest threshold on; equal scores make one point."""
    order = torch.flip(input.argsort(-1), (-1,))
    scores, hits = input[order], targ[order].cumsum(-1)
    ends = torch.cat([(scores[1:] != scores[:-1]).nonzero().flatten(), torch.tensor([len(scores) - 1])])
    true, false = hits[ends], 1 + ends - hits[ends]
    zero = torch.zeros(1, dtype=true.dtype)
    true, false = torch.cat([zero, true]), torch.cat([zero, false])
    return false.float() / false[-1], true.float() / true[-1]


def auc_roc_score(input: Tensor, targ: Tensor) -> Tensor:
    """The area under that curve."""
    false, true = roc_curve(input, targ)
    return ((false[1:] - false[:-1]) * (true[1:] + true[:-1]) / 2).sum()


class RegMetrics(Callback):
    """Gathers outputs and targets of a validation; ``measure`` makes one number of them."""

    def on_epoch_begin(self, **kwargs: Any) -> None:
        self.preds: list[Tensor] = []
        self.targs: list[Tensor] = []

    def on_batch_end(self, last_output: Tensor, last_target: Tensor, train: bool = False, **kwargs: Any) -> None:
        if not train:
            self.preds.append(last_output.detach().float().cpu())
            self.targs.append(last_target.detach().cpu())

    def on_epoch_end(self, last_metrics: Sequence[Any], **kwargs: Any) -> Any:
        if not self.preds:
            return None
        return add_metrics(last_metrics, self.measure(torch.cat(self.preds), torch.cat(self.targs)))

    measure: Any
    """A method or a function of predictions and targets."""


class R2Score(RegMetrics):
    measure = staticmethod(r2_score)


class ExplainedVariance(RegMetrics):
    measure = staticmethod(explained_variance)


class RMSE(RegMetrics):
    measure = staticmethod(root_mean_squared_error)


class ExpRMSPE(RegMetrics):
    measure = staticmethod(exp_rmspe)


class Perplexity(RegMetrics):
    """The exponential of the mean cross entropy."""

    def on_batch_end(self, last_output: Tensor, last_target: Tensor, train: bool = False, **kwargs: Any) -> None:
        super().on_batch_end(last_output.flatten(0, -2), last_target.flatten(), train)

    def measure(self, preds: Tensor, targs: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(preds, targs).exp()


class AUROC(RegMetrics):
    """The area under the curve of true over false positives, for two classes."""

    def measure(self, preds: Tensor, targs: Tensor) -> Tensor:
        return auc_roc_score(preds.softmax(-1)[:, 1] if preds.dim() > 1 else preds, targs)


class ConfusionMatrix(RegMetrics):
    """Counts by target (rows) and predicted class (columns), in ``cm`` and ``metric``."""

    def measure(self, preds: Tensor, targs: Tensor) -> Any:
        self.cm = confusion_matrix(preds.flatten(0, -2), targs.flatten(), preds.shape[-1]).float()
        self.metric = self.of_matrix(self.cm)
        return self.metric

    def of_matrix(self, cm: Tensor) -> Any:
        return cm


class _Averaged(ConfusionMatrix):
    def __init__(
        self, average: str = "binary", pos_label: int = 1, eps: float = 1e-9, beta: float = 2.0, clas_idx: int = -1
    ) -> None:
        if average not in ("binary", "macro", "micro", "weighted"):
            raise ValueError(f"fastai: average is binary, macro, micro or weighted, not {average!r}")
        self.average, self.pos_label, self.beta, self.eps, self.clas_idx = average, pos_label, beta, eps, clas_idx

    score: Any
    """A method of the precision and the recall of each class."""

    def of_matrix(self, cm: Tensor) -> Tensor:
        scores: Tensor = self.score(cm.diag() / cm.sum(0), cm.diag() / cm.sum(1))
        values = scores.nan_to_num(0.0)
        if self.average == "binary":
            return values[self.pos_label]
        if self.average == "micro":
            return cm.diag().sum() / cm.sum()
        weights = cm.sum(1) / cm.sum() if self.average == "weighted" else torch.full_like(values, 1 / len(values))
        return (values * weights).sum()


class Precision(_Averaged):
    def score(self, precision: Tensor, recall: Tensor) -> Tensor:
        return precision


class Recall(_Averaged):
    def score(self, precision: Tensor, recall: Tensor) -> Tensor:
        return recall


class FBeta(_Averaged):
    def score(self, precision: Tensor, recall: Tensor) -> Tensor:
        square = self.beta**2
        return (1 + square) * precision * recall / (square * precision + recall)


class KappaScore(ConfusionMatrix):
    """Agreement beyond chance. With ``weights`` "linear" or "quadratic", near classes disagree less."""

    def __init__(self, weights: str | None = None) -> None:
        if weights not in (None, "linear", "quadratic"):
            raise ValueError(f'fastai: weights are None, "linear" or "quadratic", not {weights!r}')
        self.weights = weights

    def of_matrix(self, cm: Tensor) -> Tensor:
        expected = torch.outer(cm.sum(1), cm.sum(0)) / cm.sum()
        places = torch.arange(len(cm), dtype=cm.dtype)
        away = (places.unsqueeze(1) - places.unsqueeze(0)).abs()
        weight = (away > 0).float() if self.weights is None else away if self.weights == "linear" else away**2
        return 1 - (cm * weight).sum() / (expected * weight).sum()


class MatthewsCorreff(ConfusionMatrix):
    """The correlation of predicted and true classes."""

    def of_matrix(self, cm: Tensor) -> Tensor:
        true, predicted, total = cm.sum(1), cm.sum(0), cm.sum()
        over = cm.diag().sum() * total - true @ predicted
        return over / ((total**2 - predicted @ predicted) * (total**2 - true @ true)).sqrt()


class MultiLabelFbeta(RegMetrics):
    """The F-beta of several labels: "micro" over all, "macro" the mean over labels, "weighted" by how often each is
    true, "none" one for each."""

    def __init__(
        self, beta: float = 2, eps: float = 1e-15, thresh: float = 0.3, sigmoid: bool = True, average: str = "micro"
    ) -> None:
        self.beta, self.eps, self.thresh, self.sigmoid, self.average = beta, eps, thresh, sigmoid, average

    def measure(self, preds: Tensor, targs: Tensor) -> Any:
        found = ((preds.sigmoid() if self.sigmoid else preds) > self.thresh).float()
        true = targs.float()
        if self.average == "micro":
            found, true = found.reshape(-1, 1), true.reshape(-1, 1)
        values = _fbeta(found, true, 0, self.beta, self.eps)
        weights = true.sum(0) / true.sum() if self.average == "weighted" else torch.full_like(values, 1 / len(values))
        return values.tolist() if self.average == "none" else (values * weights).sum()
