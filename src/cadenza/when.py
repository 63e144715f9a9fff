"""Limiting a callback to a window of the clock."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from cadenza.callback import Callback, as_around
from cadenza.clock import Clock, Duration
from cadenza.main_callback import MainCallback
from cadenza.points import POINTS, SPAN, Kind, Point

if TYPE_CHECKING:
    from cadenza.run import Run

_COUNTED_ONE_BY_ONE = ("batches", "steps", "epochs")


class When(Callback):
    """Lets ``callback`` play only while its window is open.

    ``every="100 steps"`` opens it for each hundredth step, ``start`` and ``stop`` bound it on the clock. It is decided
    once per iteration and once per epoch, for whole spans. The points of the run itself, state and ``close`` always
    pass.

    >>> from cadenza.testing import Recorder
    >>> When(Recorder(), every="100 steps", start="2 epochs").name
    'When(Recorder, every 100 steps, from 2 epochs)'
    """

    def __init__(
        self,
        callback: Callback,
        *,
        every: str | Duration | None = None,
        start: str | Duration | None = None,
        stop: str | Duration | None = None,
    ) -> None:
        if isinstance(callback, MainCallback):
            raise TypeError("a MainCallback owns what happens in every iteration; When cannot take it away")
        if not isinstance(callback, Callback):
            why = (
                " is of another system: let its own hooks look at the clock"
                if hasattr(type(callback), "__cadenza_callbacks__")
                else " is none"
            )
            raise TypeError(f"When limits a cadenza.Callback, and {type(callback).__name__}{why}")
        if every is None and start is None and stop is None:
            raise ValueError("When needs at least one of every, start and stop")
        self.callback = callback
        self.every = None if every is None else Duration.interval(every, "every")
        self.start = None if start is None else Duration.parse(start, "start")
        self.stop = None if stop is None else Duration.parse(stop, "stop")
        for name in (
            "order",
            "stages",
            "owns",
            "ranks",
            "asks",
            "agree",
            "capturable",
            "monitor",
            "mode",
            "passive",
            "same_on_ranks",
            "_shows_iterations",
        ):
            setattr(self, name, getattr(callback, name))
        words = ((self.every, "every"), (self.start, "from"), (self.stop, "until"))
        self.name = f"When({callback.name}, {', '.join(f'{word} {value}' for value, word in words if value)})"
        if "save" in callback.owns:
            self.save = callback.save  # type: ignore[attr-defined]
        self._epoch_open = True
        self._iteration_open: dict[str | None, bool] = {}
        self._last_multiple = 0

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        inner = self.callback.plays()
        played = {name: self._gate(POINTS[name], player) for name, player in inner.items()}
        played["before_run"] = self._first(self._open_run, inner.get("before_run"))
        played["before_epoch"] = self._first(self._decide_epoch, played.get("before_epoch"))
        first_of_iteration = (
            "before_fetch" if {"before_fetch", "around_fetch", "after_fetch"} & set(inner) else "before_iter"
        )
        played[first_of_iteration] = self._first(self._decide_iteration, played.get(first_of_iteration))
        return played

    def _gate(self, point: Point, player: Callable[[Run], Any]) -> Callable[[Run], Any]:
        if point.span in ("", "run"):
            return player
        call = as_around(player) if point.kind is Kind.AROUND else player
        per_epoch = point.span == "epoch" or point.span.endswith("_epoch")
        if per_epoch or point.span not in SPAN:
            return lambda run: call(run) if self._epoch_open else None
        return lambda run: call(run) if self._iteration_open.get(run.stage) else None

    def _first(self, decide: Callable[[Run], None], player: Callable[[Run], Any] | None) -> Callable[[Run], Any]:
        def decide_then_play(run: Run) -> None:
            decide(run)
            if player is not None:
                player(run)

        return decide_then_play

    def _open_run(self, run: Run) -> None:
        self._epoch_open = self._inside(run.clock)
        self._iteration_open.clear()
        self._last_multiple = self._multiple(run.clock)

    def _decide_epoch(self, run: Run) -> None:
        every = self.every
        due = every is None or every.unit != "epochs" or (run.clock.epochs + 1) % every.amount == 0
        self._epoch_open = due and self._inside(run.clock)

    def _decide_iteration(self, run: Run) -> None:
        every, due = self.every, True
        if every is None:
            pass
        elif every.unit == "epochs":
            due = self._epoch_open
        elif every.unit in _COUNTED_ONE_BY_ONE:
            due = (getattr(run.clock, every.unit) + 1) % every.amount == 0
        else:
            passed = self._multiple(run.clock)
            due, self._last_multiple = passed > self._last_multiple, passed
        self._iteration_open[run.stage] = due and self._inside(run.clock)

    def _inside(self, clock: Clock) -> bool:
        started = self.start is None or clock.reached(self.start)
        return started and not (self.stop is not None and clock.reached(self.stop))

    def _multiple(self, clock: Clock) -> int:
        return int(getattr(clock, self.every.unit) // self.every.amount) if self.every is not None else 0

    def explain(self) -> str:
        return self.callback.explain()

    def recorded_as(self, run: Run) -> Hashable:
        is_open = self._iteration_open.get(run.stage, False)
        return is_open, self.callback.recorded_as(run) if is_open else None

    def played_again(self, run: Run) -> None:
        if self._iteration_open.get(run.stage):
            self.callback.played_again(run)

    def state_dict(self) -> dict[str, Any]:
        return self.callback.state_dict()

    def _keeps_state(self) -> bool:
        return self.callback._keeps_state()

    def _carries_over(self) -> bool:
        return self.callback._carries_over()

    def _waits_for(self, run: Run) -> str:
        if self.start is not None and not run.clock.reached(self.start):
            now = getattr(run.clock, self.start.unit)
            return f"{self.name}: its window never opened, for the fit ended at {Duration(now, self.start.unit)}"
        return self.callback._waits_for(run)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.callback.load_state_dict(state)

    def close(self) -> None:
        self.callback.close()
