"""The step and zero_grad spans."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor
from torch.optim import Optimizer

from cadenza.engine.dispatch import Player, Players, fire
from cadenza.engine.requests import HOLD_STEP, SKIP_STEP, SKIP_ZERO_GRAD
from cadenza.engine.state import GONE
from cadenza.execution.action import action, agreed
from cadenza.execution.backward import NO_BACKWARD, back_propagation, refuse_who_comes_too_late
from cadenza.execution.forward import loss_behaviour
from cadenza.foundation.torch_private import found_infs, step_quickly
from cadenza.main_callback import clears_plainly
from cadenza.points import POINTS

if TYPE_CHECKING:
    from cadenza.plan import StageScore
    from cadenza.run import Run


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


def step_optimizer(run: Run, optimizer: Optimizer) -> None:
    """Steps ``optimizer``: through the scaler if there is one, with a closure if it needs one."""
    if run.scaler is not None:
        run.scaler.step(optimizer)
    elif needs_closure(optimizer):
        first: list[Tensor] = [run.loss]
        optimizer.step(lambda: first.pop() if first else run.recompute())  # type: ignore[arg-type, return-value]
    else:
        optimizer.step()


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether ``step`` cannot do without a function that evaluates the loss again, as in LBFGS."""
    return _step_needs_closure(type(optimizer))  # type: ignore[arg-type]


@functools.cache
def _step_needs_closure(kind: type[Optimizer]) -> bool:
    parameter = inspect.signature(kind.step).parameters.get("closure")
    return parameter is not None and parameter.default is parameter.empty


def recompute_verb(score: StageScore) -> Callable[[Run], Tensor]:
    """Zero_grad, forward, loss and backward once more, for optimizers and callbacks that need a second look."""
    plan = score.plan
    clear = action(score, "zero_grad", plan.behaviour("on_iter_zero_grad"), 0)
    replays = (
        action(score, "forward", plan.behaviour("on_train_forward"), 0),
        action(score, "loss", loss_behaviour(score), 0),
        action(score, "backward", back_propagation(score), 0),
    )

    def recompute(run: Run) -> Tensor:
        if run.scaler is not None:
            raise RuntimeError("run.recompute() would add scaled gradients to unscaled ones; use bf16 or fp32 with it")
        if run._state.had_held:
            raise RuntimeError(
                "run.recompute() would drop the gradients that were held from earlier batches (accumulation)"
            )
        if run._state.loss is GONE:
            raise RuntimeError("run.recompute() runs a batch once more inside a step, when it has a loss already")
        at = run._state.at
        run._state.begin_recompute()
        try:
            clear(run)
            run._state.set_loss(GONE)
            for play in replays:
                play(run)
        finally:
            run._state.end_recompute(at)
        return run.loss

    return recompute
