"""Plans whose players are timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cadenza.callback import Callback
from cadenza.engine.dispatch import Player
from cadenza.plan import Instrument, Plan
from cadenza.points import ITERATION, Kind, Point

if TYPE_CHECKING:
    from cadenza.callbacks.profiling.ledger_book import Costs, Meter, Slice
    from cadenza.run import Run

_OF_A_BATCH = frozenset(point for points in ITERATION.values() for point in points)


class TimedPlayers:
    """Makes two plans of the callbacks of a run: in one the players outside of batches are timed, in the other all of
    them. ``owner`` is not timed; in the second plan it plays ``more`` points, and there what stands in it, in any case,
    even if a ``When`` is closed."""

    def __init__(
        self, owner: Callback, more: Mapping[str, Player], meter: Meter, slices: list[Slice], costs: Costs
    ) -> None:
        self.owner, self.more = owner, more
        self.meter, self.slices, self.costs = meter, slices, costs
        self.making = False
        self._plans: tuple[Plan, Plan] | None = None

    def plays(self, run: Run) -> bool:
        """Whether one of the two is what the run plays."""
        return self._plans is not None and any(run.plan is plan for plan in self._plans)

    def belongs_to(self, run: Run) -> bool:
        """Whether the owner is still among the callbacks of the run."""
        return any(self._is_own(callback) for callback in run.callbacks)

    def plans(self, run: Run) -> tuple[Plan, Plan]:
        """Both, made anew if the run has other callbacks than they were made for."""
        if self._plans is None or not self.plays(run):
            callbacks = run.callbacks
            outside = self._plan(callbacks, run, self._outside_of_batches)
            self.making = True
            try:
                self._plans = outside, self._plan(callbacks, run, self._everywhere)
            finally:
                self.making = False
        return self._plans

    def _plan(self, callbacks: tuple[Callback, ...], run: Run, instrument: Instrument) -> Plan:
        plan = Plan(callbacks, run, instrument, given=run.plan.given)
        if plan.saver is not None:
            who = next(_who(callback) for callback in callbacks if "save" in callback.owns)
            plan.saver = self._called(who, "save", plan.saver, self._measure_outside)
        return plan

    # Who is timed where ---------------------------------------------------------------------------------------------

    def _outside_of_batches(self, point: Point, callback: Callback, player: Player) -> Player:
        if self._is_own(callback) or point.name in _OF_A_BATCH:
            return player
        if point.name == "after_log":
            return self._after_log(callback, player, lambda label, call, *args: call(*args))
        return self._timed(point, callback, player, self._measure_outside)

    def _everywhere(self, point: Point, callback: Callback, player: Player) -> Player:
        if self._is_own(callback):
            return _both(player, self.more[point.name]) if point.name in self.more else player
        if point.name in _OF_A_BATCH:
            return self._timed(point, callback, player, self._measure)
        if point.name == "after_log":
            return self._after_log(callback, player, self._measure)
        return self._timed(point, callback, player, self._measure_outside)

    def _is_own(self, callback: Callback) -> bool:
        return callback is self.owner or getattr(callback, "callback", None) is self.owner  # the latter in a When

    # How ------------------------------------------------------------------------------------------------------------

    def _measure(self, label: tuple[str, str, int], call: Callable[..., Any], *args: Any) -> Any:
        return self.meter.measure(label, self.slices.append, call, *args)

    def _measure_outside(self, label: tuple[str, str, int], call: Callable[..., Any], *args: Any) -> Any:
        self.meter.waits.begin()
        try:
            return self.meter.measure(label, self.costs.add_outside, call, *args)
        finally:
            self.meter.waits.end()

    def _timed(self, point: Point, callback: Callback, player: Player, measure: Callable[..., Any]) -> Player:
        if point.kind is not Kind.AROUND:
            return self._called(_who(callback), point.name, player, measure)
        called = self._called(_who(callback), point.name, player, measure)
        label = (_who(callback), point.name, 0)

        def hold(run: Run) -> Any:
            held = called(run)
            return _Held(held, label, measure) if hasattr(held, "__exit__") else held

        return _named(hold, _who(callback))

    def _called(self, who: str, point: str, player: Player, measure: Callable[..., Any]) -> Player:
        label = (who, point, 1)
        return _named(lambda run: measure(label, player, run), who)

    def _after_log(self, callback: Callback, player: Player, in_a_batch: Callable[..., Any]) -> Player:
        """Rows are written in batches and outside of them."""
        label = (_who(callback), "after_log", 1)

        def after_log(run: Run) -> None:
            (in_a_batch if run.is_iterating else self._measure_outside)(label, player, run)

        return _named(after_log, _who(callback))


def _who(callback: Callback) -> str:
    """The name in a table of costs: an experiment, which is named as its runs are, is an experiment there."""
    return callback._label or callback.name


def _both(player: Player, more: Player) -> Player:
    def play(run: Run) -> None:
        player(run)
        more(run)

    return play


def _named(player: Player, who: str) -> Player:
    """With the name by which an error is blamed on it while another plan plays."""
    player.__qualname__ = who
    return player


class _Held:
    """What a callback holds around a span, with its entering and leaving timed."""

    def __init__(self, held: Any, label: tuple[str, str, int], measure: Callable[..., Any]) -> None:
        self.held, self.label, self.measure = held, label, measure

    def __enter__(self) -> Any:
        return self.measure(self.label, self.held.__enter__)

    def __exit__(self, *error: Any) -> Any:
        return self.measure(self.label, self.held.__exit__, *error)
