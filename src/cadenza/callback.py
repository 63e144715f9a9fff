"""What a user writes: callbacks, and the one main callback that owns the behaviours."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cadenza.data.batch import (
    TARGET_KEYS,
    as_mapping,
    count_samples,
    has_targets,
    not_understood,
    split,
    without_targets,
)
from cadenza.points import POINTS, Kind
from cadenza.stubs import Stubs

if TYPE_CHECKING:
    from cadenza.run import Run


class Order(IntEnum):
    """When a callback plays at a point that others play too. Any whole number will do as well."""

    PREPARE = 0
    TRANSFORM = 100
    UPDATE = 200
    MEASURE = 300
    REPORT = 400
    SAVE = 500


class Callback(Stubs):
    """Override the points at which you want to play; each gets the run and nothing else.

    >>> class Hello(Callback):
    ...     def after_epoch(self, run):
    ...         print(f"epoch {run.epoch}: {run.metrics['train/loss']:.2f}")
    """

    name: str = "Callback"
    order: int = Order.UPDATE
    stages: frozenset[str] | set[str] | None = None
    owns: frozenset[str] | set[str] = frozenset()
    ranks: str | frozenset[int] | set[int] = "all"
    asks: frozenset[str] | set[str] = frozenset()
    agree: str = "any"
    capturable: bool = False
    monitor: str | None = None
    mode: str | None = None
    passive: bool = False
    """It only looks: it is not counted among those for whom a step of somebody else's making comes too early."""
    _label: str | None = None
    """What it is called where a person reads, if its name is that of something else."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    @classmethod
    def example(cls) -> Self:
        """An instance with typical arguments, for checks that are run over all callbacks."""
        return cls()

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """The points at which this callback plays, each with what is called there."""
        return {point: getattr(self, point) for point in POINTS if overrides(type(self), point) or point in vars(self)}

    def explain(self) -> str:
        """A few words for ``trainer.explain()``, such as what was inferred from the arguments."""
        return ""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep of this callback: tensors, numbers, texts, lists and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what ``state_dict`` returned."""

    def _keeps_state(self) -> bool:
        """Whether it will have something to keep, even if it has nothing yet."""
        return overrides(type(self), "state_dict")

    def recorded_as(self, run: Run) -> Hashable:
        """What a capturable callback will do in this step, as far as the host decides it: steps that differ in it are
        recorded one by one. Asked before each step that may be recorded or replayed."""
        return None

    def played_again(self, run: Run) -> None:
        """Called after a recorded step was played again, in which no point is played: for what a capturable callback
        counts on the host."""

    def close(self) -> None:
        """Called once at the end of every run, however it ended."""


def overrides(cls: type, point: str) -> bool:
    """Whether ``cls`` has its own method for ``point``."""
    for owner in cls.__mro__:
        if point in owner.__dict__:
            return owner not in (Stubs, Callback, MainCallback)
    return False


class MainCallback(Callback):
    """Owns the behaviours: what forward, loss, backward, step, zero_grad and the learning rate do.

    A run has exactly one. Override what you want to be different; the rest stays as it is here.

    >>> class OwnLoss(MainCallback):
    ...     def on_iter_forward(self, run):
    ...         images, targets = run.batch
    ...         run.output = run.model(images, targets)
    ...         run.loss = sum(run.output.values())
    """

    lr_every: str = "epoch"
    inference_mode: bool = False
    order: int = Order.PREPARE

    def __init__(self, *, lr_every: str | None = None, inference_mode: bool | None = None) -> None:
        if lr_every is not None:
            self.lr_every = lr_every
        if inference_mode is not None:
            self.inference_mode = inference_mode

    def count(self, run: Run) -> tuple[int, int]:
        """How many samples and tokens the batch holds. Means and the clock are weighted by it."""
        return count_samples(run.batch)

    def on_train_forward(self, run: Run) -> None:
        self.on_iter_forward(run)

    def on_val_forward(self, run: Run) -> None:
        self.on_iter_forward(run)

    def on_test_forward(self, run: Run) -> None:
        self.on_iter_forward(run)

    def on_pred_forward(self, run: Run) -> None:
        self.on_iter_forward(run)

    def on_iter_forward(self, run: Run) -> None:
        """Calls the model with the inputs of the batch."""
        batch = run.batch
        if type(batch) in (list, tuple) and len(batch) == 2:  # by far the most common, so it is asked first
            run.output = run.model(batch[0])
            return
        if isinstance(batch, Tensor):
            run.output = run.model(batch)
            return
        named = as_mapping(batch)
        if named is not None:
            run.output = self._call_with_names(run, batch, dict(named))
        elif isinstance(batch, list | tuple) and batch:
            run.output = run.model(*(batch[:-1] if len(batch) > 1 else batch))
        else:
            raise TypeError(not_understood(batch))

    def _call_with_names(self, run: Run, batch: Any, named: dict[str, Any]) -> Any:
        """``model(**parts)`` if its signature takes the names, else ``model(batch)``, without targets to predict."""
        rest = {key: value for key, value in named.items() if key not in TARGET_KEYS}
        for parts in (named, rest) if run.stage != "pred" else (rest,):
            if self._accepts(run.module, parts):
                return run.model(**parts)
        if isinstance(batch, tuple):
            return run.model(*rest.values())
        return run.model(without_targets(batch) if run.stage == "pred" else batch)

    def _accepts(self, module: nn.Module, parts: dict[str, Any]) -> bool:
        keys = frozenset(parts)
        if self.__dict__.get("_module") is not module:
            self._module, self._takes = module, dict[frozenset[str], bool]()
        if keys not in self._takes:
            parameters = inspect.signature(module.forward).parameters.values()
            names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
            needed = {p.name for p in parameters if p.name in names and p.default is p.empty}
            anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
            self._takes[keys] = needed <= keys and (anything or keys <= names)
        return self._takes[keys]

    def on_iter_loss(self, run: Run) -> None:
        """Calls the criterion with output and targets; without a criterion takes the loss that the model returned."""
        if run.criterion is None:
            run.loss = own_loss(run.output)
            return
        batch = run.batch
        if type(batch) in (list, tuple) and len(batch) == 2:  # by far the most common, so it is asked first
            run.loss = run.criterion(run.output, batch[1])
        elif has_targets(batch):
            run.loss = run.criterion(run.output, split(batch)[1])
        else:
            raise TypeError(f"the batch has no targets for the criterion. {not_understood(batch)}")

    def on_iter_backward(self, run: Run) -> None:
        """Back-propagates ``run.loss``, which is weighted and scaled here."""
        run.loss.backward()  # type: ignore[no-untyped-call]

    def on_iter_step(self, run: Run) -> None:
        """Steps every optimizer."""
        for optimizer in run.optimizers:
            run.step_optimizer(optimizer)

    def on_iter_zero_grad(self, run: Run) -> None:
        """Clears the gradients of every optimizer."""
        for optimizer in run.optimizers:
            zero_grad(optimizer)

    def on_lr_adjust(self, run: Run) -> None:
        """Steps every scheduler; one that follows a metric gets the watched one, or the validation or training loss."""
        for scheduler in run.schedulers:
            if not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step()
            elif (name := followed(run)) is not None:
                scheduler.step(run.metrics[name])


def clears_plainly(optimizer: Optimizer) -> bool:
    """Whether ``zero_grad`` is torch's own, so that letting go of the gradients is all that it does."""
    return type(optimizer).zero_grad is Optimizer.zero_grad and "zero_grad" not in vars(optimizer)


def zero_grad(optimizer: Optimizer) -> None:
    """Clears gradients by letting go of them: what ``optimizer.zero_grad()`` does, without its profiler hooks."""
    if not clears_plainly(optimizer):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def followed(run: Run) -> str | None:
    """The metric that a plateau schedule follows: the watched one, else the loss of validation, or without validation
    that of training. None in an epoch that did not measure it."""
    name = run._plan.watch.name if run._plan.watch else "train/loss" if run.val_loader is None else "val/loss"
    return name if run.measured(name) else None


def own_loss(output: Any) -> Tensor:
    """The loss that a model returned itself: a scalar, ``output["loss"]``, ``output.loss`` or ``output[0]``."""
    candidates = [output]
    if isinstance(output, dict):
        candidates.append(output.get("loss"))
    elif isinstance(output, list | tuple) and output:
        candidates.append(output[0])
    candidates.append(getattr(output, "loss", None))
    for candidate in candidates:
        if isinstance(candidate, Tensor) and candidate.numel() == 1:
            return candidate
    raise TypeError(
        f"there is no criterion, and the model returned no loss but {type(output).__name__}. Give the trainer a "
        "criterion, let the model return a scalar or {'loss': ...}, or write a MainCallback that sets run.loss"
    )


class FunctionCallback(Callback):
    """One function at one point; made by ``trainer.on(point)``."""

    def __init__(self, point: str, function: Callable[[Run], Any]) -> None:
        self.point = point
        self.function = function
        qualified = getattr(function, "__qualname__", type(function).__name__)
        self.name = f"{getattr(function, '__module__', '')}.{qualified}"
        self.code = getattr(function, "__code__", None)
        line = f":{self.code.co_firstlineno}" if self.code is not None and "<lambda>" in qualified else ""
        self.key = (point, self.name + line)

    def replaces(self, other: Callback) -> bool:
        """Whether this is ``other`` defined anew, as when a notebook cell is run again: the same point and name.
        Lambdas of the same code are not: a loop made them, and each is meant to play."""
        if not isinstance(other, FunctionCallback) or self.code is None or self.key != other.key:
            return False
        return "<lambda>" not in self.name or self.function is other.function or self.code is not other.code

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        return {self.point: self.function}


class Watch(Callback):
    """Says which metric decides what is best, so that ``after_best`` is played when it improves."""

    def __init__(self, monitor: str, mode: str | None = None) -> None:
        if not isinstance(monitor, str) or not monitor:
            raise TypeError(f"what is watched is the name of a metric, not {monitor!r}")
        if mode not in (None, "min", "max"):
            raise ValueError(f'mode is "min" or "max", not {mode!r}')
        self.monitor = monitor
        self.mode = mode


LOWER_IS_BETTER = ("loss", "error", "err", "perplexity", "ppl", "mae", "mse", "rmse", "nll", "wer", "cer", "seconds")


def infer_mode(metric: str) -> str:
    """Which way is better, by the name of the metric.

    >>> infer_mode("val/loss"), infer_mode("val/accuracy")
    ('min', 'max')
    """
    words = metric.lower().replace("/", "_").replace("-", "_").split("_")
    return "min" if any(word in LOWER_IS_BETTER or word.endswith(("loss", "error")) for word in words) else "max"


def not_a_point(method: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a method whose name merely looks like a point, so that registration lets it pass.

    >>> class Mine(Callback):
    ...     @not_a_point
    ...     def on_hit(self, target): ...
    """
    method.__cadenza_no_point__ = True  # type: ignore[attr-defined]
    return method


def as_around(function: Callable[[Run], Any]) -> Callable[[Run], Any]:
    """A generator function as a maker of context managers; anything else as it is."""
    if inspect.isgeneratorfunction(function):
        return contextlib.contextmanager(function)
    return function


BEHAVIOUR_NAMES: frozenset[str] = frozenset(p.name for p in POINTS.values() if p.kind is Kind.BEHAVIOUR)
