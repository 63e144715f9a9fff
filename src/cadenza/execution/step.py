"""The backward, step and zero_grad spans."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from cadenza.engine.dispatch import Player, Players, fire
from cadenza.engine.iteration import refuse_loss_by_hand
from cadenza.engine.requests import HOLD_STEP, SKIP_BACKWARD, SKIP_BATCH, SKIP_STEP, SKIP_ZERO_GRAD, actions_from
from cadenza.engine.state import UNWEIGHTED
from cadenza.execution.action import action, agreed
from cadenza.foundation.torch_private import found_infs, step_quickly
from cadenza.main_callback import clears_plainly
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


def step_verb(score: StageScore, *, adjusts_lr: bool = True) -> Callable[[Run], bool]:
    """The verb ``step``; without ``adjusts_lr`` its caller does that."""
    plan = score.plan
    plain_optimizers = has_plain_optimizers(score)
    plain = score.is_plain("step", "zero_grad") and plain_optimizers and not plan.declared
    stepping, clearing = plan.behaviour("on_iter_step"), plan.behaviour("on_iter_zero_grad")
    if plain_optimizers and plan.is_default("on_iter_zero_grad"):
        clearing = clear_plainly
    if plain_optimizers and plan.is_default("on_iter_step"):
        stepping = _step_each
    adjust_lr = plan.adjust_lr if plan.lr_every == "iter" and adjusts_lr else None
    after_step, after_zero_grad = score.players("step")[2], POINTS["after_zero_grad"]
    play_step = action(score, "step", agreed(score, _stepping(stepping), SKIP_STEP), SKIP_STEP)
    play_zero_grad = action(score, "zero_grad", agreed(score, clearing, SKIP_ZERO_GRAD), SKIP_ZERO_GRAD)
    held = plan.declared & HOLD_STEP

    def step(run: Run) -> bool:
        if run._state.stepped_itself:
            return _after_own_step(run, after_step, adjust_lr)
        if run._state.processes.many and not run._state.asked & NO_BACKWARD:
            if held:
                run._state.ask(run._state.processes.skip(run, held))
            if not run._state.asked & (NO_BACKWARD | HOLD_STEP):
                run._state.processes.settle_held(run, run._state.current)
        if plain and not run._state.asked and run.scaler is None:
            run._state.hold(False)
            step_plainly(run)
            stepped = True
        elif run._state.asked & NO_BACKWARD:
            return False
        elif run._state.asked & HOLD_STEP and not run._state.asked & SKIP_STEP:
            return _hold(run)
        else:
            stepped = _step_and_clear(run, play_step, play_zero_grad)
        if stepped and adjust_lr is not None:
            adjust_lr(run)
        run._state.reach(after_zero_grad)
        return stepped

    return step


def has_plain_optimizers(score: StageScore) -> bool:
    """Whether every optimizer can be stepped without a closure and cleared by letting go of the gradients."""
    return all(clears_plainly(optimizer) and not needs_closure(optimizer) for optimizer in score.plan.optimizers)


def step_plainly(run: Run) -> None:
    """Step and zero_grad when nobody plays there and both are the library's own. Clearing the gradients by hand is what
    ``zero_grad`` does, without its profiler hooks."""
    for optimizer in run.optimizers:
        step_quickly(optimizer)
    run.clock.steps += 1
    clear_plainly(run)


def clear_plainly(run: Run) -> None:
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def _step_each(run: Run) -> None:
    for optimizer in run.optimizers:
        if run.scaler is None:
            step_quickly(optimizer)
        else:
            run.scaler.step(optimizer)


def _step_and_clear(run: Run, play_step: Callable[[Run], object], play_zero_grad: Callable[[Run], object]) -> bool:
    run._state.begin_step()
    wanted = not run._state.asked & SKIP_STEP
    if run.scaler is not None and _found_inf(run):
        wanted = False  # all optimizers or none: their gradients come from one loss
    stepped = wanted and not play_step(run)
    if not stepped:
        run._state.restore_first_results()
        run._state.skip({"step"})
    if run.scaler is not None:
        run.scaler.update()
    if run._state.asked & SKIP_ZERO_GRAD or play_zero_grad(run):
        run._state.skip({"zero_grad"})
    return stepped


def _found_inf(run: Run) -> bool:
    """Unscales the gradients, and says whether the scaler found one that is not finite. The scaler reads the device for
    that in each step anyway; its public way to ask, the scale after the update, comes too late."""
    found: list[Tensor] = []
    for optimizer in run.optimizers:
        run.scaler.unscale_(optimizer)
        found += found_infs(run.scaler, optimizer)
    return any(bool(one) for one in found)


def _stepping(behaviour: Player) -> Callable[[Run], None]:
    """What happens inside the step span."""

    def make_step(run: Run) -> None:
        behaviour(run)
        run._state.restore_first_results()
        run.clock.steps += 1

    return make_step


def _hold(run: Run) -> bool:
    for optimizer in run.optimizers:
        if needs_closure(optimizer):
            name = type(optimizer).__name__
            raise RuntimeError(f"{name} evaluates its batch again inside the step, so gradients cannot be held for it")
    run._state.hold(True)
    run._state.skip({"step", "zero_grad"})
    return False


def _after_own_step(run: Run, after_step: Players, adjust_lr: Player | None) -> bool:
    if run._state.asked & (HOLD_STEP | SKIP_STEP):
        refuse_who_comes_too_late(run)
    run._state.set_stepped_itself(False)
    run.clock.steps += 1
    if after_step:
        fire(run, POINTS["after_step"], after_step)
    if adjust_lr is not None:
        adjust_lr(run)
    run._state.reach(POINTS["after_zero_grad"])
    return True


# Optimizers and backwards that do more than usual ---------------------------------------------------------------------


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether ``step`` cannot do without a function that evaluates the loss again, as in LBFGS."""
    return _step_needs_closure(type(optimizer))  # type: ignore[arg-type]


@functools.cache
def _step_needs_closure(kind: type[Optimizer]) -> bool:
    parameter = inspect.signature(kind.step).parameters.get("closure")
    return parameter is not None and parameter.default is parameter.empty


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
