"""The backward span, and optimizers that a user's own backward steps by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from cadenza.engine.iteration import refuse_loss_by_hand
from cadenza.engine.requests import HOLD_STEP, SKIP_BACKWARD, SKIP_BATCH, SKIP_STEP, actions_from
from cadenza.engine.state import UNWEIGHTED
from cadenza.execution.action import action, agreed
from cadenza.points import POINTS

if TYPE_CHECKING:
    from cadenza.plan import StageScore
    from cadenza.run import Run

NO_BACKWARD = SKIP_BATCH | SKIP_BACKWARD
_TOO_LATE = ("before_step", "around_step", "before_zero_grad", "around_zero_grad", "after_zero_grad")


def backward_verb(score: StageScore) -> Callable[[Run], bool]:
    """The verb ``backward``."""
    play = action(score, "backward", agreed(score, back_propagation(score), NO_BACKWARD), NO_BACKWARD)
    without_backward, after_backward = actions_from("train", "backward"), POINTS["after_backward"]

    def backward(run: Run) -> bool:
        if score.plays_forward_or_loss is not None and run._state.forwarded != run._state.current.index:
            refuse_loss_by_hand(run, score.plays_forward_or_loss)
        if run._state.asked & NO_BACKWARD or play(run):
            run._state.skip(without_backward)
            return False
        run._state.reach(after_backward)
        return True

    return backward


def back_propagation(score: StageScore) -> Callable[[Run], None]:
    """Calls ``on_iter_backward`` with the loss weighted and scaled; afterwards it is the plain one again."""
    behaviour = score.plan.behaviour("on_iter_backward")
    if score.plan.together:
        return _over_ranks(score, behaviour)
    is_default = score.plan.is_default("on_iter_backward")

    def back_propagate(run: Run) -> None:
        weighs = run.loss_weight is not UNWEIGHTED or run.scaler is not None
        if is_default and not weighs:
            run._state.loss.backward()
            return
        plain = run._state.loss
        if weighs:
            weighted = run.loss * run.loss_weight
            run._state.set_loss(weighted if run.scaler is None else run.scaler.scale(weighted))
        run._state.set_in_backward(True)
        try:
            behaviour(run)
        finally:
            run._state.set_in_backward(False)
            if weighs:
                run._state.set_loss(plain)

    return back_propagate


def _over_ranks(score: StageScore, behaviour: Callable[[Run], object]) -> Callable[[Run], None]:
    """The same under many processes: each batch weighs what it holds of all of theirs, and messages ride along."""
    weighs_itself = any("accumulation" in callback.owns for callback in score.plan.callbacks)

    def back_propagate(run: Run) -> None:
        processes = run._state.processes
        processes.refuse_passed_by(run)
        plain = run._state.loss
        weighted = processes.weighted(run, share=not weighs_itself)
        if run.scaler is not None:
            weighted = run.scaler.scale(weighted)
        run._state.set_loss(processes.carry(run, weighted))
        run._state.set_in_backward(True)
        try:
            behaviour(run)
        finally:
            run._state.set_in_backward(False)
            run._state.set_loss(plain)
        processes.after_backward(run)

    return back_propagate


def notice_own_steps(run: Run, optimizer: Optimizer) -> Any:
    """Sees an optimizer step inside the user's ``on_iter_backward``, before any weight changes."""

    def on_step(*_: Any) -> None:
        if run._state.in_backward:
            refuse_who_comes_too_late(run)
            run._state.set_stepped_itself(True)

    return optimizer.register_step_pre_hook(on_step)


def refuse_who_comes_too_late(run: Run) -> None:
    """A callback that acts between backward and step cannot, if both are one."""
    plan = run._state.plan
    late = next(((c, p) for p in _TOO_LATE for c in plan.callbacks_at(p, "train") if not c.passive), None)
    what = f"{late[0].name} at {late[1]}" if late else None
    if run._state.asked & HOLD_STEP or run._state.held or run.loss_weight is not UNWEIGHTED:
        what = "a callback that holds the step (accumulation)"
    if run._state.asked & SKIP_STEP:
        what = "run.skip_step()"
    if run.scaler is not None:
        what = "the fp16 scaler"
    if run._state.processes.reduces_apart:
        what = "putting the gradients of all processes together"
    if what is not None:
        raise RuntimeError(
            f"{plan.main.name}.on_iter_backward steps the optimizer itself, so {what} would come too late. "
            f"{plan.main._instead_of_an_own_step}"
        )
