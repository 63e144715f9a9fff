"""The verbs of a stage, one action after the other, bit-equal to a hand-written loop.

Everything that can be decided once is decided when the plan is made: an action that nobody plays is its behaviour, and
if nobody plays inside the step and all behaviours are the library's own, the step is one function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cadenza.engine.requests import ACTIONS
from cadenza.engine.stack import Verbs, each_verb
from cadenza.engine.state import UNWEIGHTED
from cadenza.execution.forward import forward_verb, without_gradients
from cadenza.execution.recompute import recompute_verb, step_optimizer
from cadenza.execution.step import backward_verb, has_plain_optimizers, step_plainly, step_verb
from cadenza.points import POINTS

if TYPE_CHECKING:
    from cadenza.plan import StageScore
    from cadenza.run import Run


def verbs(score: StageScore) -> Verbs:
    """The verbs of one stage, made for the players in ``score``."""
    forward = forward_verb(score)
    if score.stage != "train":
        evaluate = without_gradients(forward, score)
        return replace(each_verb(_only_in_training), eval_step=evaluate, forward=evaluate)
    backward, step = backward_verb(score), step_verb(score)

    train_step = in_order(forward, backward, step)
    bare = score.is_plain(*ACTIONS["train"]) and has_plain_optimizers(score) and not score.plan.together
    whole = _bare_step(score, train_step) if bare else train_step
    return Verbs(whole, _only_in_evaluation, forward, backward, step, recompute_verb(score), step_optimizer)


def opened_step(score: StageScore) -> Callable[[Run], bool]:
    """A whole training step, one action after the other, without what adjusts the learning rate."""
    return in_order(forward_verb(score), backward_verb(score), step_verb(score, adjusts_lr=False))


def in_order(
    forward: Callable[[Run], bool], backward: Callable[[Run], bool], step: Callable[[Run], bool]
) -> Callable[[Run], bool]:
    """A training step: the order of its verbs is written here and, for steps in which no callback runs, in
    ``_bare_step``. One that is skipped by request ends the step."""

    def train_step(run: Run) -> bool:
        return forward(run) and backward(run) and step(run)

    return train_step


def _bare_step(score: StageScore, opened: Callable[[Run], bool]) -> Callable[[Run], bool]:
    """The whole step when nobody plays inside it; ``opened`` does it whenever something is out of the ordinary."""
    main = score.main
    adjust_lr = score.plan.adjust_lr if score.plan.lr_every == "iter" else None
    after_zero_grad = POINTS["after_zero_grad"]

    def step(run: Run) -> bool:
        state = run._state
        if state.asked or state.held or run.scaler is not None or run.loss_weight is not UNWEIGHTED:
            return opened(run)
        batch, criterion = state.batch, run.criterion
        if criterion is not None and type(batch) in (list, tuple) and len(batch) == 2:
            state.set_output(output := run.model(batch[0]))
            state.set_loss(loss := criterion(output, batch[1]))
        else:
            main.on_iter_forward(run)
            main.on_iter_loss(run)
            loss = state.loss
        loss.backward()
        step_plainly(run)
        if adjust_lr is not None:
            adjust_lr(run)
        state.reach(after_zero_grad)
        return True

    return step


def _only_in_training(verb: str) -> Callable[..., Any]:
    def refuse(run: Run, *_: Any) -> Any:
        raise RuntimeError(f"run.{verb}() is for training; in the {run.stage} stage use run.eval_step()")

    return refuse


def _only_in_evaluation(run: Run) -> bool:
    raise RuntimeError("run.eval_step() is for validation, test and prediction; in training use run.train_step()")
