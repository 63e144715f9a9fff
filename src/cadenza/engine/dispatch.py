"""How a point is played: calling its players, entering and leaving what is held around a span."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from cadenza.engine.run_names import unknown_name
from cadenza.points import POINTS, SPAN, Kind, Point

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.engine.stack import Pass
    from cadenza.run import Run

_AFTER = {f"around_{span}": POINTS[f"after_{span}"] for span in SPAN}

Player: TypeAlias = "Callable[[Run], Any]"
Players: TypeAlias = tuple[Player, ...]
Exits: TypeAlias = list[tuple[AbstractContextManager[Any], Player]]


def fire(run: Run, point: Point, players: Players) -> None:
    """Plays ``point``: every player once, in order. A request that one makes does not keep the others from playing."""
    run._state.reach(point)
    try:
        for player in players:
            player(run)
    except BaseException as error:
        blame(run, error, point, player)
        raise


def with_caller(callback: Callback, player: Player) -> Player:
    """``player``; while it runs, ``callback`` is known as the one that asks: a request is agreed on by its rule."""

    def call(run: Run) -> Any:
        before = run._state.caller
        run._state.call_from(callback)
        try:
            return player(run)
        finally:
            run._state.call_from(before)

    return call


def enter(run: Run, point: Point, players: Players, exits: Exits) -> None:
    """Enters what each player holds around the span; ``exits`` grows as it goes, so that a failure can be undone."""
    run._state.reach(point)
    for player in players:
        try:
            held = player(run)
            if held is None:
                continue
            if not hasattr(held, "__exit__"):
                raise TypeError(f"{point.name} returns a context manager or None, not {type(held).__name__}")
            held.__enter__()
        except BaseException as error:
            blame(run, error, point, player)
            raise
        exits.append((held, player))


def leave(run: Run, point: Point, exits: Exits, error: BaseException | None) -> None:
    """Leaves everything in ``exits``, last entered first. None of them can swallow ``error``; all are left.

    What one of them raises is raised when all are left, unless ``error`` ends the run already: then it is a note on it.
    """
    raised: BaseException | None = None
    ended = _AFTER[point.name]  # what can still be asked while leaving is what can be asked afterwards
    while exits:
        held, player = exits.pop()
        run._state.reach(ended)
        seen = error or raised
        try:
            held.__exit__(type(seen) if seen else None, seen, seen.__traceback__ if seen else None)
        except BaseException as new:
            if new is seen:
                continue
            if error is not None:
                note_further(error, new, f"{run._state.plan.label(point.name, player)} at {point.name}")
            else:
                blame(run, new, point, player)
                raised = new
    if raised is not None:
        raise raised


def note_further(error: BaseException, further: BaseException, where: str) -> None:
    """What is raised while ``error`` ends the run becomes one more note on it."""
    error.add_note(f"cadenza: then {type(further).__name__} in {where}: {further}")


def hold(run: Run, point: Point, players: Players, act: Callable[[Run], object]) -> object:
    """Does ``act`` with everything that the players of an ``around`` point hold."""
    exits: Exits = []
    try:
        enter(run, point, players, exits)
        result = act(run)
    except BaseException as error:
        if run._state.at is not None and run._state.at.kind is Kind.BEHAVIOUR:
            note(run, error, "")  # before leaving, which plays other points
        leave(run, point, exits, error)
        raise
    leave(run, point, exits, None)
    return result


def blame(run: Run, error: BaseException, point: Point, player: Player) -> None:
    """Says in a note which callback raised and at which point."""
    note(run, error, f"{run._state.plan.label(point.name, player)} at {point.name}")


def note(run: Run, error: BaseException, where: str) -> None:
    """Adds one note to ``error``; the innermost one stays. If a user's own behaviour was at work, that is named."""
    if run._state.blamed is not error:
        run._state.blame(error)
        if run._state.at is not None and run._state.at.kind is Kind.BEHAVIOUR:
            where = f"{run.main.name}.{run._state.at.name}"
        error.add_note(f"cadenza: raised in {where}{whereabouts(run)}")
        if (said := unknown_name(run, error)) is not None:
            error.add_note(f"cadenza: {said}")


def out_of_a_generator(run: Run, error: StopIteration) -> RuntimeError:
    """``error`` as a generator may raise it, with its notes: Python would put a RuntimeError without them in its place
    (PEP 479)."""
    instead = RuntimeError(
        "StopIteration was raised where no iterator ends. Catch it where next() is called, or give next() a default"
    )
    for said in getattr(error, "__notes__", ()):
        instead.add_note(said)
    if run._state.blamed is error:
        run._state.blame(instead)
    return instead


def whereabouts(run: Run) -> str:
    """Where the run stands, in words for people: epochs and batches are counted from 1, as a progress line does."""
    parts = []
    if run.mode == "fit":
        parts.append(f"epoch {run.epoch + 1}")
    if run.stage is not None:
        name = f" loader {run.loader_name!r}" if run.loader_name else ""
        batch = f" batch {run._state.current.index + 1}" if run._state.current.index >= 0 else ""
        parts.append(f"{run.stage}{name}{batch}")
    return f" ({', '.join(parts)})" if parts else ""


def place(run: Run) -> str:
    """Where a run is, in words, as exactly as the last point that was passed tells."""
    at, stage, this = run._state.at, run.stage, run._state.current
    rank = f" on rank {run.rank}" if run.world_size > 1 else ""
    where = f"{whereabouts(run)}{rank}"
    if at is None:
        return f"before its first point{where}"
    if stage is not None and this.iterating and at.name == f"before_{stage}_iter":
        step = {"train": "training", "val": "validation", "test": "test", "pred": "prediction"}[stage]
        return f"in the {step} step after {at.name}{where}"
    if stage is not None and not this.iterating and not at.span.endswith("epoch"):
        return f"while batch {this.index + 2} of the {stage} loader was waited for, after {at.name}{where}"
    if at.kind is Kind.BEHAVIOUR:
        return f"in {at.name} of {run.main.name}, or after it{where}"
    return f"at {at.name} or after it{where}"


def blame_loader(run: Run, this: Pass, error: BaseException) -> None:
    """Says in a note that the user's loader raised, and how far it had come."""
    epoch = f" of epoch {run.epoch + 1}" if run.mode == "fit" else ""
    error.add_note(f"cadenza: raised by the {this.stage} loader after {this.index + 1} batches{epoch}")
    run._state.blame(error)
