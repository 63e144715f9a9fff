"""What a user writes: callbacks, and what orders and marks them."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

from cadenza._stubs import Stubs
from cadenza.foundation.arguments import check, one_of
from cadenza.points import POINTS, Kind

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
    same_on_ranks: tuple[str, ...] | None = None
    """The attributes that must be equal on all ranks; ``()`` requires the callback on each rank. With None it is
    required on each rank if it owns something, asks for skips, or has a state."""
    passive: bool = False
    """It only looks: it is not counted among those for whom a step of somebody else's making comes too early."""
    _gives_defaults = True
    """On a class of this library whose methods at points are what happens when nobody writes one."""
    _begins_anew = False
    """What it keeps is not about a model: with each training it begins anew by itself."""
    _shows_iterations = False
    """It shows what is logged in iterations, so ``fit`` logs the loss there, unless told otherwise."""
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

    def _carries_over(self) -> bool:
        """Whether it holds something of the training before, which would go on to count in that of another model."""
        if not self._keeps_state() or self._begins_anew:
            return False
        try:
            return _holds_something(self.state_dict())
        except Exception:  # a user's, which expects to be asked inside a run
            return True

    def _is_set_up(self, run: Run, callbacks: Sequence[Callback]) -> None:
        """Called for each fit before a checkpoint is looked for, and before the run begins."""

    def _waits_for(self, run: Run) -> str:
        """What it has waited for in vain, in words; asked as a fit ends that nobody stopped."""
        return ""

    def _logs(self, prefixes: Sequence[str]) -> Iterable[str] | None:
        """The names that it may log, with a star for any text, where passes have ``prefixes`` such as ``val/``; None if
        that cannot be known. It is asked only of ready callbacks: one of the user's may log anything."""
        return ()

    def recorded_as(self, run: Run) -> Hashable:
        """What a capturable callback will do in this step, as far as the host decides it: steps that differ in it are
        recorded one by one. Asked before each step that may be recorded or replayed."""
        return None

    def played_again(self, run: Run) -> None:
        """Called after a recorded step was played again, in which no point is played: for what a capturable callback
        counts on the host."""

    def close(self) -> None:
        """Called once at the end of every run, however it ended."""


def _holds_something(state: Any) -> bool:
    """Whether there is more in ``state`` than zeros, None and empty containers."""
    if isinstance(state, dict):
        return any(map(_holds_something, state.values()))
    if isinstance(state, list | tuple):
        return any(map(_holds_something, state))
    return bool(state.numel()) if hasattr(state, "numel") else bool(state)


def overrides(cls: type, point: str) -> bool:
    """Whether ``cls`` has its own method for ``point``."""
    for owner in cls.__mro__:
        if point in owner.__dict__:
            return owner is not Stubs and not owner.__dict__.get("_gives_defaults", False)
    return False


def without(played: dict[str, Callable[[Run], Any]], owner: type, *points: str) -> dict[str, Callable[[Run], Any]]:
    """``played`` less those of ``points`` where the method of ``owner`` would play; what a subclass does there stays.

    >>> class Report(Callback):
    ...     def after_iter(self, run): ...
    ...     def plays(self):
    ...         return without(super().plays(), Report, "after_iter")
    >>> class Mine(Report):
    ...     def after_iter(self, run): ...
    >>> list(Report().plays()), list(Mine().plays())
    ([], ['after_iter'])
    """
    return {
        point: player
        for point, player in played.items()
        if point not in points or getattr(player, "__func__", player) is not getattr(owner, point)
    }


def in_turn(*players: Callable[[Run], Any] | None) -> Callable[[Run], Any]:
    """One player that plays those of ``players`` that there are, one after the other."""
    there = [player for player in players if player is not None]
    if len(there) == 1:
        return there[0]

    def play(run: Run) -> None:
        for player in there:
            player(run)

    return play


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

    def _logs(self, prefixes: Sequence[str]) -> None:
        return None


class Watch(Callback):
    """Says which metric decides what is best, so that ``after_best`` is played when it improves."""

    def __init__(self, monitor: str, mode: str | None = None) -> None:
        check(isinstance(monitor, str) and monitor, "what is watched is the name of a metric", monitor, TypeError)
        one_of("mode", mode, ("min", "max"), or_none=True)
        self.monitor = monitor
        self.mode = mode


LOWER_IS_BETTER = frozenset(
    {"loss", "losses", "error", "errors", "err", "perplexity", "ppl", "nll", "kl", "kld", "wer", "cer", "ece", "brier"}
    | {"mae", "mse", "rmse", "msle", "rmsle", "mape", "smape", "fid", "distance", "seconds"}
    | {"ce", "bce", "xent", "entropy", "logloss", "cost", "divergence", "regret", "lpips", "bpc", "bpb", "bpd"}
)


def infer_mode(metric: str) -> str:
    """Which way is better, by the name of the metric.

    >>> infer_mode("val/loss"), infer_mode("val/ce"), infer_mode("val/cross_entropy"), infer_mode("val/accuracy")
    ('min', 'min', 'min', 'max')
    """
    words = [word.rstrip("0123456789") for word in re.split(r"[^a-z0-9]+", metric.lower())]
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
