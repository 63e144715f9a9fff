"""Who plays where, worked out once at the start of a run."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from torch.nn import Module
from torch.optim.lr_scheduler import ReduceLROnPlateau

from cadenza.callback import Callback, Watch, as_around, infer_mode, overrides
from cadenza.engine.dispatch import Player, Players
from cadenza.engine.requests import declared_skips
from cadenza.execution.executor import Execution, Executor
from cadenza.execution.scheduling import lr_cadence, tell_of_schedulers
from cadenza.execution.step import needs_closure, notice_own_steps
from cadenza.foundation.warn import warn
from cadenza.history import Watched
from cadenza.main_callback import MainCallback
from cadenza.points import BEHAVIOURS, POINTS, STAGES, Kind, Point
from cadenza.registration.checks import CallbackError, check_callback, check_together

if TYPE_CHECKING:
    from cadenza.run import Run

Instrument: TypeAlias = Callable[[Point, Callback, Player], Player]
_PER_STAGE_ITERATION = ("fetch", "iter", "forward", "loss")
_open: list[weakref.ref[Run]] = []
"""The runs that are open, whose callbacks no other run may have. They are weak: a forgotten run does not count."""
_claiming = threading.RLock()
"""Held while a run claims its callbacks: trainers of other threads look at the same tables."""

_trained_with: dict[int, tuple[weakref.ref[Callback], weakref.ref[Module]]] = {}
"""The model that a callback with a state was last trained with, by the identity of the callback."""


class StageScore:
    """The players of one stage, each point a plain tuple, and the verbs made of them."""

    def __init__(self, plan: Plan, stage: str) -> None:
        self.stage = stage
        self.main = plan.main
        self.plan = plan
        self.at_before_epoch, self.at_around_epoch, self.at_after_epoch = (POINTS[f"{k}_{stage}_epoch"] for k in _KINDS)
        self.at_before_iter, self.at_around_iter, self.at_after_iter = (POINTS[f"{k}_{stage}_iter"] for k in _KINDS)
        self.before_stage_epoch, self.around_stage_epoch, self.after_stage_epoch = self.players(f"{stage}_epoch")
        self.before_stage_iter, self.around_stage_iter, self.after_stage_iter = self.players(f"{stage}_iter")
        self.before_fetch, self.around_fetch, self.after_fetch = self.players("fetch")
        self.before_iter, self.around_iter, self.after_iter = self.players("iter")
        self.plays_fetch = bool(self.before_fetch or self.around_fetch or self.after_fetch)
        self.plays_iter = any(any(self.players(span)) for span in ("iter", f"{stage}_iter"))
        inside = [f"{kind}_{span}" for span in ("forward", "loss") for kind in _KINDS]
        self.plays_forward_or_loss = next((c.name for point in inside for c in plan.callbacks_at(point, stage)), None)
        self.count = None if type(plan.main).count is MainCallback.count else plan.main.count
        self.verbs = plan.executor.verbs(self)

    def is_plain(self, *spans: str) -> bool:
        """Whether nobody plays in ``spans`` and their behaviours are the library's own."""
        names = [b.name for b in BEHAVIOURS if b.span in spans and self.stage in b.stages]
        return self.plan.is_default(*names) and not any(any(self.players(span)) for span in spans)

    def players(self, span: str) -> tuple[Players, Players, Players]:
        """Who plays before, around and after ``span`` in this stage."""
        at = self.plan.players_at
        before, around, after = (at(f"{kind}_{span}", self.stage) for kind in ("before", "around", "after"))
        return before, around, after


class Plan:
    """For every point the tuple of its players on this rank, in order."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        run: Run,
        instrument: Instrument | None = None,
        *,
        every_rank: bool = False,
        given: Sequence[Callback] | None = None,
    ) -> None:
        self.optimizers = run.optimizers
        self.given = tuple(callbacks if given is None else given)
        """Those of all ranks, in the order in which they were given."""
        execution = run.training_state.execution or Execution()
        self.executor: Executor = run._state.executor_made_by(lambda: Executor(execution, run))
        self.together = run.world_size > 1 and not every_rank
        self.declared = declared_skips(self.given) if self.together else 0
        self._strategy = run.training_state.strategy
        self.callbacks, self.main = arrange(callbacks, None if every_rank else (run.rank, run.local_rank))
        self.lr_every = lr_cadence(self.main, run.training_state.scheduler_every)
        self._instrument = instrument
        self._table = self._players_by_point()
        self._labels = {
            (point, player): callback._label or callback.name
            for point, rows in self._table.items()
            for callback, player in rows
        }
        self.watch = watched(self.callbacks, someone_plays=bool(self._table["after_best"]))
        self.before_run, self.around_run, self.after_run = (self.players_at(f"{kind}_run") for kind in _KINDS)
        self.before_epoch, self.around_epoch, self.after_epoch = (self.players_at(f"{kind}_epoch") for kind in _KINDS)
        self.after_launch = self.players_at("after_launch")
        self.after_log = self.players_at("after_log")
        self.after_best = self.players_at("after_best")
        self.after_error = self.players_at("after_error")
        self.before_save, self.after_save, self.after_load = map(
            self.players_at, ("before_save", "after_save", "after_load")
        )
        self.adjust_lr = self.behaviour("on_lr_adjust")
        savers: list[Any] = [callback for callback in self.callbacks if "save" in callback.owns]
        self.saver: Player | None = savers[0].save if savers else None
        self.stages = {stage: StageScore(self, stage) for stage in STAGES}
        self._handles: list[Any] = []

    def _players_by_point(self) -> dict[str, list[tuple[Callback, Player]]]:
        table: dict[str, list[tuple[Callback, Player]]] = {name: [] for name in POINTS}
        for callback in self.callbacks:
            for name, player in callback.plays().items():
                point = POINTS[name]
                if point.kind is Kind.BEHAVIOUR:
                    continue
                if point.kind is Kind.AROUND:
                    player = as_around(player)
                if self.together:
                    player = self._strategy.played(callback, player)
                if self._instrument is not None:
                    player = self._instrument(point, callback, player)
                table[name].append((callback, player))
        return table

    def players_at(self, point: str, stage: str | None = None) -> Players:
        """The players of ``point``; a callback with ``stages`` plays the points that stages share only in those."""
        shared = stage is not None and POINTS[point].span in _PER_STAGE_ITERATION
        return tuple(
            player
            for callback, player in self._table[point]
            if not (shared and callback.stages is not None and stage not in callback.stages)
        )

    def callbacks_at(self, point: str, stage: str | None = None) -> list[Callback]:
        """Like ``players_at``, but who they belong to."""
        players = self.players_at(point, stage)
        return [callback for callback, player in self._table[point] if player in players]

    def own(self, callback: Callback, point: str) -> Players:
        """The players of ``point`` that belong to ``callback``."""
        return tuple(player for owner, player in self._table[point] if owner is callback)

    @property
    def instrumented(self) -> bool:
        """Whether its players are wrapped, to be timed or recorded."""
        return self._instrument is not None

    def label(self, point: str, player: Player) -> str:
        return self._labels.get((point, player), getattr(player, "__qualname__", "a callback"))

    def is_default(self, *behaviours: str) -> bool:
        return not any(overrides(type(self.main), behaviour) for behaviour in behaviours)

    def behaviour(self, name: str) -> Player:
        """What happens at ``name``: the library's own method as it is, a user's with its place noted."""
        method: Player = getattr(self.main, name)
        if self.is_default(name):
            return method
        point = POINTS[name]

        def behave(run: Run) -> None:
            before = run._state.at
            run._state.reach(point)
            method(run)
            run._state.reach(before)

        return behave

    def claim(self, run: Run) -> None:
        """Refuses a callback that plays in another run at this moment, and lets no other run have these. Whatever is
        raised here, no callback is claimed."""
        with _claiming:
            self._claim(run)

    def _claim(self, run: Run) -> None:
        for callback in self.callbacks:
            refuse_if_elsewhere(callback, run)
        if run.mode == "fit":
            warn_of_another_model(self.callbacks, run)
        if weakref.ref(run) not in _open:  # where callbacks were added or removed in a run, it is there
            _open.append(weakref.ref(run, _open.remove))

    def begin(self, run: Run) -> None:
        """Listens for optimizers that a user's own backward steps by itself."""
        self.executor.begin()
        if not self.is_default("on_iter_backward"):
            self._handles = [notice_own_steps(run, optimizer) for optimizer in run.optimizers]

    def release(self) -> None:
        """No optimizer is listened to any more."""
        for handle in self._handles:
            handle.remove()

    def end(self, run: Run) -> None:
        """The run is over: its callbacks may play in another one."""
        self.release()
        with contextlib.suppress(ValueError):
            _open.remove(weakref.ref(run))

    def tell_of_schedulers(self, run: Run) -> None:
        """As the first training pass of a fit begins: warns of schedulers that seem to count steps."""
        tell_of_schedulers(run)

    def check(self, run: Run) -> None:
        """Refuses what cannot work together with these optimizers, once before_run has set everything up."""
        follows = any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in run.schedulers)
        if follows and self.lr_every == "iter" and self.is_default("on_lr_adjust"):
            raise CallbackError(
                "ReduceLROnPlateau follows a metric of epochs, so it cannot be stepped after each step: leave out "
                'scheduler_every="step" or lr_every="iter"'
            )
        self.executor.check(self)
        closures = [type(optimizer).__name__ for optimizer in run.optimizers if needs_closure(optimizer)]
        if run.mode != "fit" or not closures:
            return
        if run.scaler is not None:
            raise CallbackError(
                f"{closures[0]} evaluates the loss several times a step, which fp16 scaling does not allow"
            )
        for callback in self.callbacks_at("before_step"):
            if not callback.passive:
                raise CallbackError(
                    f"{callback.name} plays before_step, but {closures[0]} computes new gradients inside the step, "
                    "which it would not see; if it only looks at the first ones, declare passive = True"
                )


_KINDS = ("before", "around", "after")


def refuse_if_elsewhere(callback: Callback, run: Run | None) -> None:
    """One instance plays in one run at a time."""
    others = [other for one in list(_open) if (other := one()) is not None and other is not run]
    if any(callback is one for other in others for one in other._state.plan.callbacks):
        raise CallbackError(f"{callback.name} is playing in another run; give each run its own instance")


def warn_of_another_model(callbacks: Sequence[Callback], run: Run) -> None:
    """What a callback keeps is about the model that it was trained with: the best value, an average of the weights."""
    keeping = [callback for callback in callbacks if callback._keeps_state()]
    elsewhere = [callback.name for callback in keeping if _was_elsewhere(callback, run) and callback._carries_over()]
    if elsewhere:
        warn(
            f"{', '.join(elsewhere)} took part in the training of another model, and what is kept of that goes on to "
            "count; give each trainer its own instances"
        )
    for callback in keeping:  # after the warning, which may be an error
        key = id(callback)
        forget = weakref.ref(callback, lambda _, key=key: _trained_with.pop(key, None) and None)  # type: ignore[misc]
        _trained_with[key] = (forget, weakref.ref(run.module))


def _was_elsewhere(callback: Callback, run: Run) -> bool:
    known = _trained_with.get(id(callback))
    return known is not None and known[1]() is not run.module and not run._state.resume.is_resuming


def arrange(callbacks: Sequence[Callback], ranks: tuple[int, int] | None) -> tuple[tuple[Callback, ...], MainCallback]:
    """Checks the callbacks, adds the default main one if there is none, and sorts those that exist on this rank (its
    number among all and on this machine; None for all ranks)."""
    for callback in callbacks:
        check_callback(callback)
    check_together(callbacks)
    present = [callback for callback in callbacks if ranks is None or _is_on(callback, *ranks)]
    main = next((callback for callback in present if isinstance(callback, MainCallback)), None)
    if main is None:
        main = MainCallback()
        present.insert(0, main)
    return tuple(sorted(present, key=lambda callback: callback.order)), main


def _is_on(callback: Callback, rank: int, local_rank: int) -> bool:
    ranks = callback.ranks
    if isinstance(ranks, str):
        return ranks == "all" or (rank == 0 if ranks == "main" else local_rank == 0)
    return rank in ranks


def watched(callbacks: Sequence[Callback], someone_plays: bool) -> Watched | None:
    """The watched metric: what ``Watch`` says, else the one that the callbacks monitor."""
    sayers = [callback for callback in callbacks if isinstance(callback, Watch)]
    if len(sayers) > 1:
        raise CallbackError(f"{len(sayers)} Watch callbacks; a run watches one metric")
    monitors: list[Callback] = [*sayers] or [callback for callback in callbacks if callback.monitor is not None]
    found = {(callback.monitor, callback.mode or infer_mode(str(callback.monitor))): callback for callback in monitors}
    if len(found) > 1:
        if someone_plays:
            names = ", ".join(f"{callback.name} ({name}, {mode})" for (name, mode), callback in found.items())
            raise CallbackError(f'several metrics could decide what is best: {names}. Say which: add Watch("val/loss")')
        return None
    for (name, mode), callback in found.items():
        return Watched(str(name), mode, callback.name)
    return None
