"""Learning rates set by a curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cadenza.callbacks.rates.curves import Curve
from cadenza.callbacks.rates.param_groups import Target, initial_lr, set_lr, set_momentum
from cadenza.callbacks.rates.plateau import Plateau, measured
from cadenza.callbacks.rates.timetable import Course, Timetable, length_of_fit
from cadenza.clock import Clock, Duration
from cadenza.execution.scheduling import steps_per_epoch

if TYPE_CHECKING:
    from cadenza.run import Run


class CurveDriver:
    """Sets learning rates by a curve, from what the clock has counted since the schedule began."""

    def __init__(self, curve: Curve, course: Course, target: Target, monitor: str | None, who: str) -> None:
        self.curve, self.course, self.target, self.monitor, self.who = curve, course, target, monitor, who
        self._clock = Clock()
        self._began: tuple[int, int] | None = None
        self._loaded: dict[str, Any] | None = None
        self._total: Duration | None = None
        self._timetable: Timetable | None = None
        self._fit: tuple[Any, ...] = ()
        self._moves_momentum = type(curve).momentum is not Curve.momentum

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        played: dict[str, Callable[[Run], Any]] = {"before_train_iter": self._set}
        return {**played, "after_epoch": self._check} if self.monitor is not None else played

    def words(self) -> str:
        cadence = [] if self.monitor is not None else [f"every {self.course.cadence}"]
        return ", ".join(part for part in (self.curve.words(), *cadence, self.course.words()) if part)

    # When it begins -------------------------------------------------------------------------------------------------

    def begin(self, run: Run) -> None:
        self._clock, self._timetable = run.clock, None
        if self._loaded is not None:
            self.loaded(run)
        elif self._began is None or self.course.spans_fit:
            self._began = (run.clock.steps, run.clock.epochs)

    def loaded(self, run: Run) -> None:
        """Goes on from a saved state; if the schedule was at its end there, a new one begins."""
        if self._loaded is None:
            return
        state, self._loaded, self._timetable = self._loaded, None, None
        steps, epochs = int(state["steps"]), int(state["epochs"])
        if self.course.spans_fit and state["length"] is not None and state[state["unit"]] >= state["length"]:
            steps = epochs = 0
        self._began = (run.clock.steps - steps, run.clock.epochs - epochs)
        self._total = None if state["length"] is None else Duration(state["length"], state["unit"])

    def _of_this_fit(self, run: Run, began: tuple[int, int]) -> Timetable:
        """Worked out again if the length of the fit changes, and not in each step."""
        fit = run.num_steps, run.num_epochs, began
        if self._timetable is None or fit != self._fit:
            self._total = self.course.length or (length_of_fit(run, began) if self.course.has_end else None)
            self._timetable, self._fit = self.course.timetable(self._total, lambda: steps_per_epoch(run)), fit
        return self._timetable

    # What it does ---------------------------------------------------------------------------------------------------

    def _set(self, run: Run) -> None:
        if self._began is None or self._loaded is not None:
            self.begin(run)
        began, clock, curve = self._began or (0, 0), run.clock, self.curve
        steps, epochs = clock.steps - began[0], clock.epochs - began[1]
        timetable = self._of_this_fit(run, began)
        x = timetable.place(steps, epochs)
        value, momentum = curve(x), curve.momentum(x) if self._moves_momentum else None
        for optimizer, numbers in self.target.chosen(run.optimizers):
            for number in numbers:
                group = optimizer.param_groups[number]
                initial = initial_lr(group)
                kept = max(value, min(curve.min_lr / initial, 1.0)) if curve.min_lr and initial else value
                set_lr(group, initial * timetable.factor(kept, steps, epochs))
                if momentum is not None:
                    set_momentum(group, momentum)

    def _check(self, run: Run) -> None:
        value = measured(run, str(self.monitor), self.who)
        if value is not None and isinstance(self.curve, Plateau):
            self.curve.check(value)

    # State ----------------------------------------------------------------------------------------------------------

    def carries_over(self) -> bool:
        """Whether something of this training would count in another one: most begin anew with each fit."""
        if self._loaded is not None or isinstance(self.curve, Plateau):
            return True
        return not self.course.spans_fit and self._began not in (None, (0, 0))

    def state_dict(self) -> dict[str, Any]:
        state = self._loaded
        if state is None:
            began = self._began or (self._clock.steps, self._clock.epochs)
            length, unit = (None, None) if self._total is None else (self._total.amount, self._total.unit)
            steps, epochs = self._clock.steps - began[0], self._clock.epochs - began[1]
            state = {"steps": steps, "epochs": epochs, "length": length, "unit": unit}
        return {**state, "plateau": self.curve.state_dict()} if isinstance(self.curve, Plateau) else dict(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = {name: state[name] for name in ("steps", "epochs", "length", "unit")}
        if isinstance(self.curve, Plateau):
            self.curve.load_state_dict(state["plateau"])
