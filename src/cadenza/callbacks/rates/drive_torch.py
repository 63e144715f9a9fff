"""Torch's own schedulers, driven by real steps or epochs, with their state in the checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from cadenza.callbacks.rates.param_groups import Target
from cadenza.callbacks.rates.plateau import measured
from cadenza.foundation.kept_state import KeptState
from cadenza.resume.collect import decoded, encoded

if TYPE_CHECKING:
    from cadenza.run import Run

Factory: TypeAlias = Callable[[Optimizer], Any]


class TorchDriver:
    """One scheduler for each optimizer that is meant, made before the first step and stepped as torch says."""

    def __init__(self, factory: Factory, target: Target, cadence: str | None, monitor: str | None, who: str) -> None:
        self.factory, self.target, self.cadence, self.monitor, self.who = factory, target, cadence, monitor, who
        self._schedulers: list[Any] = []
        self._loaded: list[Any] | None = None
        self._steps: int | None = None
        self._batches = -1

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        played = {"before_train_iter": self._begin_iteration}
        if self.cadence == "step":
            return {**played, "after_train_iter": self._end_iteration, "after_train_epoch": self._end_train_epoch}
        return {**played, "after_epoch": self._end_epoch}

    def words(self) -> str:
        if self.monitor is not None:
            return f"torch's scheduler, at the end of an epoch in which {self.monitor} was measured"
        return f"torch's scheduler, after every {self.cadence}"

    def begin(self, run: Run) -> None:
        self._steps, self._batches = None, -1

    def loaded(self, run: Run) -> None:
        pass

    # When the schedulers are stepped --------------------------------------------------------------------------------

    def _begin_iteration(self, run: Run) -> None:
        self._make(run)
        self._steps = run.clock.steps

    def _end_iteration(self, run: Run) -> None:
        self._follow(run)
        self._batches = run.clock.batches

    def _end_train_epoch(self, run: Run) -> None:
        """Held gradients may be stepped after the last iteration; nothing else lies in between if no batch does."""
        if run.clock.batches == self._batches:
            self._follow(run)

    def _follow(self, run: Run) -> None:
        """One call of ``step`` for each step of the optimizer that was really made."""
        if self._steps is not None:
            for _ in range(run.clock.steps - self._steps):
                self._step_all()
            self._steps = run.clock.steps

    def _end_epoch(self, run: Run) -> None:
        self._make(run)
        if self.monitor is None:
            if run.clock.epochs > run.epoch:  # it is not if the epoch was cut short, and so does not count
                with warnings.catch_warnings():  # torch warns if all steps of the epoch were asked away
                    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                    self._step_all()
            return
        value = measured(run, self.monitor, self.who)
        if value is not None:
            self._step_all(value)

    def _step_all(self, *value: float) -> None:
        for scheduler in self._schedulers:
            scheduler.step(*value)

    # How they are made ----------------------------------------------------------------------------------------------

    def _make(self, run: Run) -> None:
        optimizers = [optimizer for optimizer, _ in self.target.chosen(run.optimizers)]
        known = [getattr(scheduler, "optimizer", None) for scheduler in self._schedulers]
        if len(known) != len(optimizers) or any(a is not b for a, b in zip(known, optimizers, strict=True)):
            self._schedulers = [self._made(optimizer) for optimizer in optimizers]
        if self._loaded is not None:
            states, self._loaded = self._loaded, None
            for scheduler, state in zip(self._schedulers, states, strict=True):
                scheduler.load_state_dict(decoded(state, scheduler.state_dict()))

    def _made(self, optimizer: Optimizer) -> Any:
        """Making one sets the learning rate of its first step; if it goes on from a saved state, that is undone."""
        before = KeptState()
        before.keep_settings(optimizer, added=True)
        scheduler = self.factory(optimizer)
        if not hasattr(scheduler, "step") or getattr(scheduler, "optimizer", None) is not optimizer:
            raise TypeError(f"torch= is a function that makes a scheduler for its optimizer; it made {scheduler!r}")
        if isinstance(scheduler, ReduceLROnPlateau) != (self.monitor is not None):
            needs = (
                "follows a metric: give monitor=" if self.monitor is None else "follows no metric: leave out monitor="
            )
            raise ValueError(f"{type(scheduler).__name__} {needs}")
        if self._loaded is not None:
            before.restore()
        return scheduler

    # State ----------------------------------------------------------------------------------------------------------

    def carries_over(self) -> bool:
        """Whether something of this training would count in another one: each optimizer gets a new scheduler."""
        return self._loaded is not None

    def state_dict(self) -> dict[str, Any]:
        if self._loaded is not None:
            return {"schedulers": self._loaded}
        return {"schedulers": [encoded(scheduler.state_dict()) for scheduler in self._schedulers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = list(state["schedulers"]) or None
        if self._loaded is None:
            self._schedulers = []  # there were none yet: those of a later moment are made anew
