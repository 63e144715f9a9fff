"""The actions of an iteration, one after the other, bit-equal to a hand-written loop.

Everything that can be decided once is decided here, when the plan is made: an action that nobody plays is its
behaviour, and if nobody plays inside the step and all behaviours are the library's own, the step is one function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cadenza.fields import GONE
from cadenza.points import POINTS
from cadenza.requests import HOLD_STEP, SKIP_BACKWARD, SKIP_BATCH, SKIP_STEP, SKIP_ZERO_GRAD, actions_from
from cadenza.spans import Player, fire, hold
from cadenza.verbs import Forward, Verbs, each_verb

if TYPE_CHECKING:
    from cadenza.plan import StageScore
    from cadenza.run import Run

_NO_BACKWARD = SKIP_BATCH | SKIP_BACKWARD


def verbs(score: StageScore) -> Verbs:
    """The verbs of one stage, made for the players in ``score``."""
    if score.stage != "train":
        forward = _without_gradients(_forward(score), score)
        return replace(each_verb(_only_in_training), eval_step=forward, forward=forward)
    forward, backward, step = _forward(score), _backward(score), _step(score)

    def train_step(run: Run) -> bool:
        return forward(run) and backward(run) and step(run)

    whole = _bare_step(score, train_step) if _nobody_plays_inside(score) else train_step
    return Verbs(whole, _only_in_evaluation, forward, backward, step, _again(score), step_optimizer)


def _only_in_training(verb: str) -> Callable[..., Any]:
    def refuse(run: Run, *_: Any) -> Any:
        raise RuntimeError(f"run.{verb}() is for training; in the {run.stage} stage use run.eval_step()")

    return refuse


def _only_in_evaluation(run: Run) -> bool:
    raise RuntimeError("run.eval_step() is for validation, test and prediction; in training use run.train_step()")


# One action ---------------------------------------------------------------------------------------------------------


def action(score: StageScore, span: str, act: Callable[[Run], object], vetoes: int) -> Callable[[Run], object]:
    """``span`` with its players, as a function that says True if the action did not happen: because it was asked away
    in ``before`` by one of ``vetoes``, or because ``act`` itself says so. If nobody plays there, it is ``act``."""
    before, around, after = score.players(span)
    p_before, p_around, p_after = (POINTS[f"{kind}_{span}"] for kind in ("before", "around", "after"))
    if not (before or around or after):
        return act

    def play_with_others(run: Run) -> bool:
        if before:
            fire(run, p_before, before)
            if run._asked & vetoes:
                return True
        if hold(run, p_around, around, act) if around else act(run):
            return True
        if after:
            fire(run, p_after, after)
        return False

    return play_with_others


def _only_for_effect(function: Player) -> Callable[[Run], None]:
    """A user's function without its return value, which has no meaning."""

    def act(run: Run) -> None:
        function(run)

    return act


# Forward and loss ---------------------------------------------------------------------------------------------------


def _forward(score: StageScore) -> Forward:
    plan, stage = score.plan, score.stage
    own = f"on_{stage}_forward"
    behaviour = plan.behaviour("on_iter_forward" if plan.is_default(own) else own)
    play_forward = action(score, "forward", behaviour, SKIP_BATCH)
    if stage == "pred":
        return _prediction(score, play_forward)
    play_loss = action(score, "loss", _loss(score, not plan.is_default(own, "on_iter_forward")), SKIP_BATCH)
    play_loss_unless_set = action(score, "loss", _loss(score, True), SKIP_BATCH)
    without_loss, without_all = actions_from(stage, "loss"), actions_from(stage, "forward")
    after_loss = POINTS["after_loss"]

    def forward(run: Run, compute: Player | None = None) -> bool:
        index = run._pass.index
        if run._forwarded == index:
            run._loss = GONE  # a second forward of the same batch
        run._forwarded = index
        entered, then = play_forward, play_loss
        if compute is not None:
            entered, then = action(score, "forward", _only_for_effect(compute), SKIP_BATCH), play_loss_unless_set
        if run._asked & SKIP_BATCH or entered(run):
            run._skipped |= without_all
            return False
        if run._asked & SKIP_BATCH or then(run):
            run._skipped |= without_loss
            return False
        run._at = after_loss
        return True

    return forward


def _loss(score: StageScore, may_be_set: bool) -> Callable[[Run], object]:
    behaviour = score.plan.behaviour("on_iter_loss")
    if not may_be_set:
        return behaviour

    def loss_unless_set(run: Run) -> None:
        if run._loss is GONE:
            behaviour(run)

    return loss_unless_set


def _prediction(score: StageScore, play: Callable[[Run], object]) -> Forward:
    def forward(run: Run, compute: Player | None = None) -> bool:
        entered = play if compute is None else action(score, "forward", _only_for_effect(compute), SKIP_BATCH)
        if run._asked & SKIP_BATCH or entered(run):
            run._skipped |= {"forward"}
            return False
        return True

    return forward


def _without_gradients(forward: Forward, score: StageScore) -> Forward:
    mode = torch.inference_mode if score.main.inference_mode else torch.no_grad

    def evaluate(run: Run, compute: Player | None = None) -> bool:
        with mode():
            return forward(run, compute)

    return evaluate


# Backward -----------------------------------------------------------------------------------------------------------


def _back_propagation(score: StageScore) -> Callable[[Run], None]:
    behaviour = score.plan.behaviour("on_iter_backward")
    is_default = score.plan.is_default("on_iter_backward")

    def back_propagate(run: Run) -> None:
        if run.loss_weight == 1.0 and run.scaler is None:
            if is_default:
                run._loss.backward()
            else:
                _noticing_own_steps(run, behaviour)
            return
        plain = run.loss
        weighted = plain * run.loss_weight
        run.loss = weighted if run.scaler is None else run.scaler.scale(weighted)
        try:
            _noticing_own_steps(run, behaviour)
        finally:
            run.loss, run.loss_weight = plain, 1.0

    return back_propagate


def _noticing_own_steps(run: Run, behaviour: Player) -> None:
    run._in_backward = True
    try:
        behaviour(run)
    finally:
        run._in_backward = False


def _backward(score: StageScore) -> Callable[[Run], bool]:
    play = action(score, "backward", _back_propagation(score), SKIP_BATCH | SKIP_BACKWARD)
    passed_over = next((c.name for point in _INNER for c in score.plan.callbacks_at(point, "train")), None)
    without_backward, after_backward = actions_from("train", "backward"), POINTS["after_backward"]

    def backward(run: Run) -> bool:
        if passed_over is not None and run._forwarded != run._pass.index:
            raise RuntimeError(
                f"run.loss was set by hand, so the forward and loss points that {passed_over} plays would be passed "
                "over; use run.forward(compute) with a function that sets run.output and run.loss"
            )
        if run._asked & _NO_BACKWARD or play(run):
            run._skipped |= without_backward
            return False
        run._at = after_backward
        return True

    return backward


_INNER = tuple(f"{kind}_{span}" for span in ("forward", "loss") for kind in ("before", "around", "after"))


def notice_own_steps(run: Run, optimizer: Optimizer) -> Any:
    """Sees an optimizer step inside the user's ``on_iter_backward``, before any weight changes."""

    def on_step(*_: Any) -> None:
        if run._in_backward:
            _refuse_who_comes_too_late(run)
            run._stepped_itself = True

    return optimizer.register_step_pre_hook(on_step)


def _refuse_who_comes_too_late(run: Run) -> None:
    plan = run._plan
    points = ("before_step", "around_step", "before_zero_grad", "around_zero_grad", "after_zero_grad")
    late = next(((c, p) for p in points for c in plan.callbacks_at(p, "train") if not c.passive), None)
    what = f"{late[0].name} at {late[1]}" if late else None
    if run._asked & HOLD_STEP or run._held or run.loss_weight != 1.0:
        what = "a callback that holds the step (accumulation)"
    if run.scaler is not None:
        what = "the fp16 scaler"
    if what is not None:
        raise RuntimeError(
            f"{plan.main.name}.on_iter_backward steps the optimizer itself, so {what} would come too late. Let it only "
            "call run.loss.backward(), and put the rest into on_iter_step and on_iter_zero_grad, or leave those out"
        )


# Step and zero_grad -------------------------------------------------------------------------------------------------


def _step(score: StageScore) -> Callable[[Run], bool]:
    plan = score.plan
    behaviour = plan.behaviour("on_iter_step")
    adjust_lr = plan.adjust_lr if score.main.lr_every == "iter" else None
    after_step, after_zero_grad = score.players("step")[2], POINTS["after_zero_grad"]

    def make_step(run: Run) -> bool:
        run._withheld = False
        if run.scaler is None:
            behaviour(run)
        else:
            _step_through_scaler(run, behaviour)
        if run._first is not None:
            _restore_first(run)
        if run._withheld:
            return True
        run.clock.steps += 1
        return False

    play_step = action(score, "step", make_step, SKIP_STEP)
    play_zero_grad = action(score, "zero_grad", plan.behaviour("on_iter_zero_grad"), SKIP_ZERO_GRAD)

    def step(run: Run) -> bool:
        if run._stepped_itself:
            return _after_own_step(run, after_step, adjust_lr)
        if run._asked & _NO_BACKWARD:
            return False
        if run._asked & HOLD_STEP:
            return _hold(run)
        run._held = False
        if run.scaler is not None:
            for optimizer in run.optimizers:
                run.scaler.unscale_(optimizer)
        stepped = not run._asked & SKIP_STEP and not play_step(run)
        if not stepped:
            _drop_step(run)
        if run._asked & SKIP_ZERO_GRAD or play_zero_grad(run):
            run._skipped |= {"zero_grad"}
        if stepped and adjust_lr is not None:
            adjust_lr(run)
        run._at = after_zero_grad
        return stepped

    return step


def _step_through_scaler(run: Run, behaviour: Player) -> None:
    """Steps with the fp16 scaler, which withholds the step of an optimizer whose gradients are not finite."""
    made: list[Optimizer] = []
    handles = [optimizer.register_step_post_hook(lambda it, *_: made.append(it)) for optimizer in run.optimizers]
    try:
        behaviour(run)
    finally:
        for handle in handles:
            handle.remove()
    run.scaler.update()
    run._withheld = not made


def _restore_first(run: Run) -> None:
    """After a batch was played again inside a step, its first loss and output are the ones that count."""
    if run._first is not None:
        (run.loss, run.output), run._first = run._first, None


def _drop_step(run: Run) -> None:
    _restore_first(run)
    if run.scaler is not None and not run._withheld:
        run.scaler.update()
    run._skipped |= {"step"}


def _hold(run: Run) -> bool:
    for optimizer in run.optimizers:
        if needs_closure(optimizer):
            name = type(optimizer).__name__
            raise RuntimeError(
                f"{name} evaluates its batch again inside the step, so gradients of others cannot be held"
            )
    run._held = True
    run._skipped |= {"step", "zero_grad"}
    return False


def _after_own_step(run: Run, after_step: tuple[Player, ...], adjust_lr: Player | None) -> bool:
    if run._asked & HOLD_STEP:
        _refuse_who_comes_too_late(run)
    run._stepped_itself = False
    run.clock.steps += 1
    if after_step:
        fire(run, POINTS["after_step"], after_step)
    if adjust_lr is not None:
        adjust_lr(run)
    run._at = POINTS["after_zero_grad"]
    return True


def step_optimizer(run: Run, optimizer: Optimizer) -> None:
    """Steps ``optimizer``: through the scaler if there is one, with a closure if it needs one."""
    if run.scaler is not None:
        run.scaler.step(optimizer)
    elif needs_closure(optimizer):
        first: list[Tensor] = [run.loss]
        optimizer.step(lambda: first.pop() if first else run.again())  # type: ignore[arg-type, return-value]
    else:
        optimizer.step()


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether ``step`` cannot do without a function that evaluates the loss again, as in LBFGS."""
    return _step_needs_closure(type(optimizer))  # type: ignore[arg-type]


@functools.cache
def _step_needs_closure(kind: type[Optimizer]) -> bool:
    parameter = inspect.signature(kind.step).parameters.get("closure")
    return parameter is not None and parameter.default is parameter.empty


def _again(score: StageScore) -> Callable[[Run], Tensor]:
    plan = score.plan
    own = not plan.is_default("on_train_forward", "on_iter_forward")
    playing = (
        action(score, "zero_grad", plan.behaviour("on_iter_zero_grad"), 0),
        action(score, "forward", plan.behaviour("on_train_forward"), 0),
        action(score, "loss", _loss(score, own), 0),
        action(score, "backward", _back_propagation(score), 0),
    )

    def again(run: Run) -> Tensor:
        if run.scaler is not None:
            raise RuntimeError("run.again() would add scaled gradients to unscaled ones; use bf16 or fp32 with it")
        if run._loss is GONE:
            raise RuntimeError("run.again() plays a batch once more inside a step, when it has a loss already")
        at, run._replaying = run._at, True
        run._first = run._first or (run.loss, run.output)
        try:
            for play in playing:
                if play is playing[1]:
                    run._loss = GONE
                play(run)
        finally:
            run._replaying, run._at = False, at
        return run.loss

    return again


# The whole step when nobody plays inside it -------------------------------------------------------------------------

_ACTIONS = ("forward", "loss", "backward", "step", "zero_grad")
_BEHAVIOURS = (
    "on_train_forward",
    "on_iter_forward",
    "on_iter_loss",
    "on_iter_backward",
    "on_iter_step",
    "on_iter_zero_grad",
)


def _nobody_plays_inside(score: StageScore) -> bool:
    plain = all(
        type(optimizer).zero_grad is Optimizer.zero_grad and not needs_closure(optimizer)
        for optimizer in score.plan.optimizers
    )
    return plain and score.plan.is_default(*_BEHAVIOURS) and not any(any(score.players(span)) for span in _ACTIONS)


def _bare_step(score: StageScore, opened: Callable[[Run], bool]) -> Callable[[Run], bool]:
    main = score.main
    adjust_lr = score.plan.adjust_lr if main.lr_every == "iter" else None
    after_zero_grad = POINTS["after_zero_grad"]

    def step(run: Run) -> bool:
        if run._asked or run._held or run.scaler is not None or run.loss_weight != 1.0:
            return opened(run)
        batch, criterion, optimizers = run._batch, run.criterion, run.optimizers
        if criterion is not None and type(batch) in (list, tuple) and len(batch) == 2:
            run._output = output = run.model(batch[0])
            run._loss = loss = criterion(output, batch[1])
        else:
            main.on_iter_forward(run)
            main.on_iter_loss(run)
            loss = run._loss
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        run.clock.steps += 1
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        if adjust_lr is not None:
            adjust_lr(run)
        run._at = after_zero_grad
        return True

    return step
