"""One action: its players, and the behaviour inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cadenza.engine.dispatch import Player, blame, hold
from cadenza.points import POINTS

if TYPE_CHECKING:
    from cadenza.plan import StageScore
    from cadenza.run import Run


def action(score: StageScore, span: str, act: Callable[[Run], object], vetoes: int) -> Callable[[Run], object]:
    """``span`` with its players, as a function that says True if the action did not happen: because it was asked away
    in ``before`` by one of ``vetoes``, or because ``act`` itself says so. If nobody plays there, it is ``act``."""
    before, around, after = score.players(span)
    at_before, at_around, at_after = (POINTS[f"{kind}_{span}"] for kind in ("before", "around", "after"))
    if not (before or around or after):
        return act

    def play(run: Run) -> bool:
        player: Player | None = None
        try:
            if before:
                run._state.reach(at_before)
                for player in before:
                    player(run)
                player = None
                if run._state.asked & vetoes:
                    return True
            if hold(run, at_around, around, act) if around else act(run):
                return True
            if after:
                run._state.reach(at_after)
                for player in after:
                    player(run)
        except BaseException as error:
            if player is not None:
                blame(run, error, at_before if run._state.at is at_before else at_after, player)
            raise
        return False

    return play


def agreed(score: StageScore, act: Callable[[Run], object], vetoes: int) -> Callable[[Run], object]:
    """``act``, before which many processes agree whether one of ``vetoes`` was asked for, if a callback may do so."""
    mask = score.plan.declared & vetoes
    if not mask:
        return act

    def agree_first(run: Run) -> object:
        run._state.ask(run._state.processes.skip(run, mask))
        return True if run._state.asked & vetoes else act(run)

    return agree_first


def only_for_effect(function: Player) -> Callable[[Run], None]:
    """A user's function without its return value, which has no meaning."""

    def act(run: Run) -> None:
        function(run)

    return act
