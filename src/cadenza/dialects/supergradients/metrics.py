"""Metrics by name: objects with ``update(preds, target)``, ``compute()`` and ``reset()``, as torchmetrics has them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.callback import Order
from cadenza.callbacks.measuring.metric_states import FunctionMean, ObjectState
from cadenza.callbacks.measuring.metrics import Group, Metrics
from cadenza.callbacks.measuring.pass_measure import prefix_of
from cadenza.callbacks.measuring.per_sample import top_k_accuracy
from cadenza.dialects.supergradients.environment import maybe_all_reduce_tensor_average
from cadenza.dialects.supergradients.registry import build, register_metric
from cadenza.dialects.supergradients.upkeep import unpacked

if TYPE_CHECKING:
    from cadenza.dialects.supergradients.context import PhaseContext
    from cadenza.run import Run

__all__ = ["Accuracy", "Top5", "accuracy"]


class TopK:
    """The share of samples whose class is among the ``k`` highest scores."""

    k = 1

    def __init__(self, dist_sync_on_step: bool = False) -> None:
        self.reset()

    def reset(self) -> None:
        self.total, self.count = torch.zeros(()), 0

    def update(self, preds: Any, target: Tensor) -> None:
        preds = preds[0] if isinstance(preds, list | tuple) else preds
        target = target.argmax(1) if target.dim() > 1 else target
        right = top_k_accuracy(preds, target, k=min(self.k, preds.shape[1])).detach().float()
        self.total = self.total.to(right.device) + right.mean() * len(target)
        self.count += len(target)

    def compute(self) -> Tensor:
        both = torch.stack([self.total, torch.full_like(self.total, self.count)])
        both = maybe_all_reduce_tensor_average(both)
        return both[0] / both[1].clamp(min=1)

    def clone(self) -> TopK:
        return copy.deepcopy(self)

    def __call__(self, preds: Any, target: Tensor) -> Tensor:
        self.update(preds, target)
        this = self.clone()
        this.reset()
        this.update(preds, target)
        return this.compute()


@register_metric("Accuracy")
class Accuracy(TopK):
    """The share of samples whose class is right.

    >>> metric = Accuracy()
    >>> metric.update(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    >>> metric.compute()
    tensor(0.5000)
    """


@register_metric("Top5")
class Top5(TopK):
    """The share of samples whose class is among the five highest scores."""

    k = 5


def accuracy(output: Tensor, target: Tensor, topk: Sequence[int] = (1,)) -> list[Tensor]:
    """The shares of samples, in percent, whose class is among the ``k`` highest scores, for each ``k``."""
    return [top_k_accuracy(output, target, k=k).float().mean() * 100 for k in topk]


def metrics_by_name(wanted: Sequence[Any]) -> MetricCollection:
    """Metrics from objects, names or ``{name: arguments}``, each under the name of its class."""
    found = MetricCollection()
    for one in wanted or ():
        metric = build("metric", one)
        name = getattr(metric, "name", None) or type(metric).__name__
        if name in found:
            raise ValueError(f"supergradients: two metrics are called {name!r}")
        found[str(name)] = metric
    return found


class MetricCollection(dict[str, Any]):
    """Metrics by name, measured together: what callbacks find as ``metrics_compute_fn``."""

    def update(self, *given: Any, **fields: Any) -> None:
        fields |= dict(zip(("preds", "target"), given, strict=False))
        for metric in self.values():
            update_metric(metric, fields)

    def compute(self) -> dict[str, Any]:
        """The results by name; one that is a dict brings its own names."""
        found: dict[str, Any] = {}
        for name, metric in self.items():
            result = metric.compute()
            found |= result if isinstance(result, Mapping) else {name: result}
        return found

    def reset(self) -> None:
        for metric in self.values():
            metric.reset()

    def clone(self) -> MetricCollection:
        return MetricCollection(copy.deepcopy(dict(self)))


def update_metric(metric: Any, fields: Mapping[str, Any]) -> None:
    """Hands over those of ``fields`` that ``update`` has arguments for; predictions and target, if it names neither."""
    known = inspect.signature(metric.update).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        metric.update(**fields)
    elif "preds" in known or "target" in known:
        metric.update(**{name: fields[name] for name in known if name in fields})
    else:
        metric.update(fields["preds"], fields["target"])


class ContextMetrics(Metrics):
    """Measures with what the context holds beside predictions and target. Callbacks see a training batch measured, and
    one of validation or test not yet."""

    order = Order.PREPARE - 1500

    def __init__(self, metrics: Mapping[str, Any], stages: Sequence[str], context: PhaseContext) -> None:
        super().__init__(metrics, stages=stages, prepare=lambda run: (run.output, unpacked(run.batch)[1]))
        self.name, self.context = f"Metrics of {stages[0]}", context

    def after_train_iter(self, run: Run) -> None:
        super().after_iter(run)

    def after_iter(self, run: Run) -> None:
        if run.stage != "train":
            super().after_iter(run)

    def new_tally(self, run: Run) -> Group:
        return ContextGroup(self, super().new_tally(run).states)

    def _state(self, prefix: str, name: str, device: torch.device) -> FunctionMean | ObjectState:
        made = super()._state(prefix, name, device)
        return ContextState(made.metric, device, self.context) if isinstance(made, ObjectState) else made


class ContextGroup(Group):
    """The components of a metric have names of their own."""

    def results(self, run: Run) -> dict[str, Any]:
        return {name.partition("/")[2] or name: value for name, value in super().results(run).items()}


class ContextState(ObjectState):
    def __init__(self, metric: Any, device: torch.device, context: PhaseContext) -> None:
        super().__init__(metric, device)
        self.context = context

    def add(self, output: Any, targets: Any, samples: int) -> None:
        fields = {name: value for name, value in vars(self.context).items() if name not in ("run", "_stop")}
        fields |= {"stop_training": self.context.stop_training, "preds": output, "target": targets}
        update_metric(self.metric, fields)
        self.weight += 1


def open_metrics(run: Run) -> MetricCollection:
    """The objects that measure the pass that is open."""
    found = MetricCollection()
    for one in run.callbacks:
        group = one._open.get(prefix_of(run)) if isinstance(one, Metrics) else None
        if isinstance(group, Group):
            found |= {name: one.metric for name, one in group.states.items() if isinstance(one, ObjectState)}
    return found
