"""The actions of an iteration, one after the other, bit-equal to a hand-written loop.

Everything that can be decided once is decided here, when the plan is made: an action that nobody plays is its
behaviour, and if nobody plays inside the step and all behaviours are the library's own, the step is one function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cadenza.points import POINTS
from cadenza.requests import HOLD_STEP, SKIP_BACKWARD, SKIP_BATCH, SKIP_STEP, SKIP_ZERO_GRAD, actions_from
from cadenza.spans import Player, fire, hold

if TYPE_CHECKING:
    from cadenza.plan import StageScore
    from cadenza.run import Run

_WITHHELD = True


@dataclass(frozen=True)
class Verbs:
    """What the verbs of a run do in one stage. Each returns False when something was asked away."""

    train_step: Callable[[Run], bool]
    eval_step: Callable[[Run], bool]
    forward: Callable[[Run, Player | None], bool]
    backward: Callable[[Run], bool]
    step: Callable[[Run], bool]
    again: Callable[[Run], Tensor]
    step_optimizer: Callable[[Run, Optimizer], None]


def verbs(score: StageScore) -> Verbs:
    """The verbs of one stage, made for the players in ``score``."""
    if score.stage != "train":
        forward = _without_gradients(_forward(score), score)
        no = _only_in_training
        return Verbs(no("train_step"), lambda run: forward(run, None), forward, no("backward"), no("step"), no("again"), no(""))
    forward, backward, step = _forward(score), _backward(score), _step(score)

    def train_step(run: Run) -> bool:
        return forward(run, None) and backward(run) and step(run)

    whole = _bare_step(score, train_step) if _nobody_plays_inside(score) else train_step
    return Verbs(whole, _only_in_evaluation, forward, backward, step, _again(score), step_optimizer)


def _only_in_training(verb: str) -> Callable[..., Any]:
    def refuse(run: Run, *_: Any) -> Any:
        raise RuntimeError(f"run.{verb}() is for training; in the {run.stage} stage use run.eval_step()")

    return refuse


def _only_in_evaluation(run: Run) -> bool:
    raise RuntimeError("run.eval_step() is for validation, test and prediction; in training use run.train_step()")


# One action ---------------------------------------------------------------------------------------------------------


def action(score: StageScore, span: str, act: Callable[[Run], object], vetoes: int) -> Callable[[Run], bool]:
    """``span`` with its players. ``act`` says True if it withheld what it should have done; ``vetoes`` are the requests
    that keep it from beginning when they are made in ``before``."""
    before, around, after = score.players(span)
    p_before, p_around, p_after = (POINTS[f"{kind}_{span}"] for kind in ("before", "around", "after"))
    if not (before or around or after):

        def play(run: Run) -> bool:
            return act(run) is not _WITHHELD

        return play

    def play_with_others(run: Run) -> bool:
        if before:
            fire(run, p_before, before)
            if run._asked & vetoes:
                return False
        if (hold(run, p_around, around, act) if around else act(run)) is _WITHHELD:
            return False
        if after:
            fire(run, p_after, after)
        return True

    return play_with_others


def _discard(behaviour: Player) -> Callable[[Run], None]:
    """A user's behaviour without its return value, which has no meaning."""

    def act(run: Run) -> None:
        behaviour(run)

    return act


# Forward and loss ---------------------------------------------------------------------------------------------------


def _forward(score: StageScore) -> Callable[[Run, Player | None], bool]:
    plan, stage = score.plan, score.stage
    own = f"on_{stage}_forward"
    behaviour = _discard(plan.behaviour(own) if not plan.is_default(own) else plan.behaviour("on_iter_forward"))
    may_set_loss = not plan.is_default(own, "on_iter_forward")
    play_forward = action(score, "forward", behaviour, SKIP_BATCH)
    if stage == "pred":
        return _prediction(score, play_forward)
    play_loss = action(score, "loss", _loss(score, may_set_loss), SKIP_BATCH)

    def forward(run: Run, compute: Player | None) -> bool:
        if run._forwarded and run._alive("loss"):
            del run.loss
        run._forwarded = True
        entered = play_forward
        if compute is not None:
            entered = action(score, "forward", _discard(compute), SKIP_BATCH)
        for name, play in (("forward", entered), ("loss", play_loss if compute is None else own_or_default_loss)):
            if run._asked & SKIP_BATCH or not play(run):
                run.skipped = run.skipped | actions_from(stage, name)
                return False
        run._at = POINTS["after_loss"]
        return True

    own_or_default_loss = action(score, "loss", _loss(score, True), SKIP_BATCH)
    return forward


def _loss(score: StageScore, may_be_set: bool) -> Callable[[Run], None]:
    behaviour = _discard(score.plan.behaviour("on_iter_loss"))
    if not may_be_set:
        return behaviour

    def loss_unless_set(run: Run) -> None:
        if not run._alive("loss"):
            behaviour(run)

    return loss_unless_set


def _prediction(score: StageScore, play: Callable[[Run], bool]) -> Callable[[Run, Player | None], bool]:
    def forward(run: Run, compute: Player | None) -> bool:
        entered = play if compute is None else action(score, "forward", _discard(compute), SKIP_BATCH)
        if run._asked & SKIP_BATCH or not entered(run):
            run.skipped = run.skipped | {"forward"}
            return False
        return True

    return forward


def _without_gradients(
    forward: Callable[[Run, Player | None], bool], score: StageScore
) -> Callable[[Run, Player | None], bool]:
    mode = torch.inference_mode if score.main.inference_mode else torch.no_grad

    def evaluate(run: Run, compute: Player | None) -> bool:
        with mode():
            return forward(run, compute)

    return evaluate


# Backward -----------------------------------------------------------------------------------------------------------


def _back_propagation(score: StageScore) -> Callable[[Run], None]:
    behaviour = score.plan.behaviour("on_iter_backward")

    def back_propagate(run: Run) -> None:
        plain = run.loss
        if run.loss_weight != 1.0:
            run.loss = plain * run.loss_weight
        if run.scaler is not None:
            run.loss = run.scaler.scale(run.loss)
        run._in_backward = True
        try:
            behaviour(run)
        finally:
            run._in_backward = False
            run.loss = plain

    return back_propagate


def _backward(score: StageScore) -> Callable[[Run], bool]:
    play = action(score, "backward", _back_propagation(score), SKIP_BATCH | SKIP_BACKWARD)
    passed_over = next((c.name for point in _INNER for c in score.plan.callbacks_at(point, "train")), None)

    def backward(run: Run) -> bool:
        if passed_over is not None and not run._forwarded:
            raise RuntimeError(
                f"run.loss was set by hand, so the forward and loss points that {passed_over} plays would be passed "
                "over; use run.forward(compute) with a function that sets run.output and run.loss"
            )
        if run._asked & (SKIP_BATCH | SKIP_BACKWARD) or not play(run):
            run.skipped = run.skipped | actions_from("train", "backward")
            return False
        run._at = POINTS["after_backward"]
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
    after_step = score.players("step")[2]

    def make_step(run: Run) -> object:
        run._withheld = False
        behaviour(run)
        _restore_first(run)
        if run._withheld:
            return _WITHHELD
        run.clock.steps += 1
        return None

    play_step = action(score, "step", make_step, SKIP_STEP)
    play_zero_grad = action(score, "zero_grad", _discard(plan.behaviour("on_iter_zero_grad")), SKIP_ZERO_GRAD)

    def step(run: Run) -> bool:
        if run._stepped_itself:
            return _after_own_step(run, after_step, adjust_lr)
        if run._asked & (SKIP_BATCH | SKIP_BACKWARD):
            return False
        if run._asked & HOLD_STEP:
            return _hold(run)
        run._held = False
        if run.scaler is not None:
            for optimizer in run.optimizers:
                run.scaler.unscale_(optimizer)
        stepped = not run._asked & SKIP_STEP and play_step(run)
        if not stepped:
            _drop_step(run)
        if run._asked & SKIP_ZERO_GRAD or not play_zero_grad(run):
            _add_skipped(run, "zero_grad")
        if stepped and adjust_lr is not None:
            adjust_lr(run)
        run._at = POINTS["after_zero_grad"]
        return stepped

    return step


def _restore_first(run: Run) -> None:
    """After a batch was played again inside a step, its first loss and output are the ones that count."""
    if run._first is not None:
        (run.loss, run.output), run._first = run._first, None


def _drop_step(run: Run) -> None:
    _restore_first(run)
    if run.scaler is not None and not run._withheld:
        run.scaler.update()
    _add_skipped(run, "step")


def _add_skipped(run: Run, name: str) -> None:
    if run._alive("skipped"):
        run.skipped = run.skipped | {name}


def _hold(run: Run) -> bool:
    for optimizer in run.optimizers:
        if needs_closure(optimizer):
            name = type(optimizer).__name__
            raise RuntimeError(f"{name} evaluates its batch again inside the step, so gradients of others cannot be held")
    run._held = True
    run.skipped = run.skipped | {"step", "zero_grad"}
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
        scale = run.scaler.get_scale()
        run.scaler.step(optimizer)
        run.scaler.update()
        run._withheld = run.scaler.get_scale() < scale
    elif needs_closure(optimizer):
        first: list[Tensor] = [run.loss]
        optimizer.step(lambda: first.pop() if first else run.again())  # type: ignore[arg-type]
    else:
        optimizer.step()


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether ``step`` cannot do without a function that evaluates the loss again, as in LBFGS."""
    return _step_needs_closure(type(optimizer))


@functools.cache
def _step_needs_closure(kind: type[Optimizer]) -> bool:
    parameter = inspect.signature(kind.step).parameters.get("closure")
    return parameter is not None and parameter.default is parameter.empty


def _again(score: StageScore) -> Callable[[Run], Tensor]:
    plan = score.plan
    own = not plan.is_default("on_train_forward", "on_iter_forward")
    playing = (
        action(score, "zero_grad", _discard(plan.behaviour("on_iter_zero_grad")), 0),
        action(score, "forward", _discard(plan.behaviour("on_train_forward")), 0),
        action(score, "loss", _loss(score, own), 0),
        action(score, "backward", _back_propagation(score), 0),
    )

    def again(run: Run) -> Tensor:
        if run.scaler is not None:
            raise RuntimeError("run.again() would add scaled gradients to unscaled ones; use bf16 or fp32 with it")
        if not run._alive("loss"):
            raise RuntimeError("run.again() plays a batch once more inside a step, when it has a loss already")
        at, run._replaying = run._at, True
        run._first = run._first or (run.loss, run.output)
        try:
            for play in playing:
                if play is playing[1]:
                    del run.loss
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
        batch, criterion, optimizers = run.batch, run.criterion, run.optimizers
        if criterion is not None and type(batch) in (list, tuple) and len(batch) == 2:
            run.output = output = run.model(batch[0])
            run.loss = loss = criterion(output, batch[1])
        else:
            main.on_iter_forward(run)
            main.on_iter_loss(run)
            loss = run.loss
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
