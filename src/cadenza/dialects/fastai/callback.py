"""fastai's base class of callbacks, its annealing functions and its mean of a metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from cadenza.dialects.adapter import Foreign
from cadenza.dialects.fastai.adapter import FastaiAdapter
from cadenza.dialects.fastai.core import camel2snake
from cadenza.dialects.fastai.optimizer import OptimWrapper
from cadenza.dialects.fastai.section import FastaiSection
from cadenza.dialects.fastai.table import DIALECT
from cadenza.dialects.fastai.torch_core import add_metrics

__all__ = [
    "AverageMetric", "Callback", "OptimWrapper", "Scheduler", "SmoothenValue", "add_metrics", "annealing_cos",
    "annealing_exp", "annealing_linear", "annealing_no", "annealing_poly", "camel2snake",
]  # fmt: skip

Annealing: TypeAlias = Callable[[float, float, float], float]


class Callback(Foreign):
    """Override the events that you want; each gets the state as keywords, and may return a dict of changes to it.

    ``self.model`` and ``self.optimizer`` are those of the run, in a callback that has none of its own. Hooks of the
    blog are carried as well: they need no ``**kwargs``, and may return True to skip what follows.

    >>> class Half(Callback):
    ...     def on_backward_begin(self, last_loss, **kwargs):
    ...         return {"last_loss": last_loss / 2}
    """

    __dialect_base__ = True
    dialect = DIALECT
    section_class = FastaiSection
    adapter_class = FastaiAdapter
    _order: int = 0
    _section: Any
    exclude: ClassVar[Sequence[str]] = ("_section",)
    not_min: ClassVar[Sequence[str]] = ()

    @property
    def model(self) -> Any:
        return self._own_or("model", lambda section: section.run.model)

    @model.setter
    def model(self, value: Any) -> None:
        section = vars(self).get("_section")
        if "model" not in vars(self) and section is not None and section.is_open:
            section.run.model = value
        else:
            vars(self)["model"] = value

    @property
    def optimizer(self) -> Any:
        return self._own_or("optimizer", lambda section: section.optimizer)

    @optimizer.setter
    def optimizer(self, value: Any) -> None:
        vars(self)["optimizer"] = value

    def _own_or(self, name: str, of: Callable[[Any], Any]) -> Any:
        if name in vars(self):
            return vars(self)[name]
        section = vars(self).get("_section")
        if section is None or not section.is_open:
            raise AttributeError(f"fastai: self.{name} is there while a run goes on")
        return of(section)

    def on_train_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_batch_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_loss_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_loss_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_backward_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_backward_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_step_begin(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_step_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_batch_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_epoch_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def on_train_end(self, *args: Any, **kwargs: Any) -> Any: ...
    def jump_to_epoch(self, epoch: int) -> None: ...

    def get_state(self, minimal: bool = True) -> dict[str, Any]:
        """The attributes of this callback, without those that it excludes."""
        away = {"_section", *self.exclude, *(self.not_min if minimal else ())}
        return {name: value for name, value in vars(self).items() if name not in away}

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}: {value}" for name, value in self.get_state(minimal=False).items())
        return f"{type(self).__name__}\n{inside}" if inside else type(self).__name__


class SmoothenValue:
    """A mean in which each value weighs ``beta`` times as much as the next.

    >>> smooth = SmoothenValue(0.5)
    >>> for value in (1.0, 3.0): smooth.add_value(value)
    >>> round(smooth.smooth, 4)
    2.3333
    """

    def __init__(self, beta: float) -> None:
        self.beta, self.n, self.mov_avg, self.smooth = beta, 0, 0.0, 0.0

    def add_value(self, val: Any) -> None:
        self.n += 1
        self.mov_avg = self.beta * self.mov_avg + (1 - self.beta) * val
        self.smooth = self.mov_avg / (1 - self.beta**self.n)


class AverageMetric(Callback):
    """The mean of ``func(output, target)`` over validation, each batch weighted by its samples."""

    def __init__(self, func: Callable[..., Any]) -> None:
        inner = func.func if isinstance(func, partial) else func
        self.func, self.name = func, getattr(inner, "__name__", type(inner).__name__)

    def on_epoch_begin(self, **kwargs: Any) -> None:
        self.val: Any = 0.0
        self.count = 0

    def on_batch_end(self, last_output: Any, last_target: Any, **kwargs: Any) -> None:
        target = last_target if isinstance(last_target, list | tuple) else [last_target]
        size = target[0].size(0)
        value = self.func(last_output, *target)
        self.count += size
        self.val = self.val + size * (value.detach() if isinstance(value, Tensor) else value)

    def on_epoch_end(self, last_metrics: Sequence[Any], **kwargs: Any) -> Any:
        return add_metrics(last_metrics, self.val / self.count)


# Annealing ------------------------------------------------------------------------------------------------------------


def annealing_no(start: float, end: float, pct: float) -> float:
    """Stays at ``start``."""
    return start


def annealing_linear(start: float, end: float, pct: float) -> float:
    """
    >>> annealing_linear(1.0, 3.0, 0.5)
    2.0
    """
    return start + pct * (end - start)


def annealing_exp(start: float, end: float, pct: float) -> float:
    """By equal factors."""
    return float(start * (end / start) ** pct)


def annealing_cos(start: float, end: float, pct: float) -> float:
    """Along half a cosine."""
    return end + (start - end) / 2 * (math.cos(math.pi * pct) + 1)


def annealing_poly(degree: float) -> Annealing:
    """Along a polynomial."""
    return lambda start, end, pct: end + (start - end) * (1 - pct) ** degree


class Scheduler:
    """From the first of ``vals`` to the second in ``n_iter`` steps.

    >>> schedule = Scheduler((0.0, 1.0), 2, annealing_linear)
    >>> schedule.step(), schedule.step(), schedule.is_done
    (0.5, 1.0, True)
    """

    def __init__(self, vals: float | tuple[float, float], n_iter: int, func: Annealing | None = None) -> None:
        self.start, self.end = vals if isinstance(vals, tuple) else (vals, 0.0)
        self.n_iter = max(1, n_iter)
        self.func = func or (annealing_linear if isinstance(vals, tuple) else annealing_no)
        self.n = 0

    def restart(self) -> None:
        self.n = 0

    def step(self) -> float:
        self.n += 1
        return self.func(self.start, self.end, self.n / self.n_iter)

    @property
    def is_done(self) -> bool:
        return self.n >= self.n_iter
