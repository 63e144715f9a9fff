"""The forward and loss spans."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from cadenza.engine.dispatch import Player
from cadenza.engine.requests import SKIP_BATCH, actions_from
from cadenza.engine.stack import Forward
from cadenza.engine.state import GONE
from cadenza.execution.action import action, only_for_effect
from cadenza.points import POINTS

if TYPE_CHECKING:
    from cadenza.plan import StageScore
    from cadenza.run import Run


def forward_verb(score: StageScore) -> Forward:
    """The verb ``forward`` of one stage."""
    play_forward = action(score, "forward", forward_behaviour(score), SKIP_BATCH)
    if score.stage == "pred":
        return _prediction(score, play_forward)
    if score.is_plain("forward", "loss"):
        return _plain(score)
    play_loss = action(score, "loss", loss_behaviour(score), SKIP_BATCH)
    return _forward_and_loss(score, play_forward, play_loss)


def _forward_and_loss(
    score: StageScore, play_forward: Callable[[Run], object], play_loss: Callable[[Run], object]
) -> Forward:
    stage, after_loss = score.stage, POINTS["after_loss"]
    without_loss, without_all = actions_from(stage, "loss"), actions_from(stage, "forward")
    play_loss_unless_set = action(score, "loss", _unless_set(score.plan.behaviour("on_iter_loss")), SKIP_BATCH)

    def forward(run: Run, compute: Player | None = None) -> bool:
        run._state.begin_forward()
        entered, then = play_forward, play_loss
        if compute is not None:
            entered, then = action(score, "forward", only_for_effect(compute), SKIP_BATCH), play_loss_unless_set
        if run._state.asked & SKIP_BATCH or entered(run):
            run._state.skip(without_all)
            return False
        if run._state.asked & SKIP_BATCH or then(run):
            run._state.skip(without_loss)
            return False
        run._state.reach(after_loss)
        return True

    return forward


def _plain(score: StageScore) -> Forward:
    """Nobody plays in forward and loss, and both are the library's own: nothing can ask in between."""
    compute_plainly, after_loss = plain_forward(score), POINTS["after_loss"]
    without_all = actions_from(score.stage, "forward")
    opened = _forward_and_loss(score, score.main.on_iter_forward, score.main.on_iter_loss)

    def forward(run: Run, compute: Player | None = None) -> bool:
        if compute is not None:
            return opened(run, compute)
        if run._state.asked & SKIP_BATCH:
            run._state.skip(without_all)
            return False
        run._state.begin_forward()
        compute_plainly(run)
        run._state.reach(after_loss)
        return True

    return forward


def plain_forward(score: StageScore) -> Callable[[Run], None]:
    """Output and loss by the library's own behaviours."""
    model, loss = forward_behaviour(score), loss_behaviour(score)

    def compute(run: Run) -> None:
        model(run)
        loss(run)

    return compute


def forward_behaviour(score: StageScore) -> Callable[[Run], object]:
    """What happens in the forward span: the user's own, or the library's with a short way for ``(inputs, targets)``."""
    plan, main, own = score.plan, score.main, f"on_{score.stage}_forward"
    if not plan.is_default(own, "on_iter_forward"):
        return plan.behaviour("on_iter_forward" if plan.is_default(own) else own)

    def call_model(run: Run) -> None:
        batch = run._state.batch
        if type(batch) in (list, tuple) and len(batch) == 2:
            run._state.set_output(run.model(batch[0]))
        else:
            main.on_iter_forward(run)

    return call_model


def loss_behaviour(score: StageScore) -> Callable[[Run], object]:
    """What happens in the loss span; nothing if a user's own forward set the loss already."""
    plan, main = score.plan, score.main
    if not plan.is_default(f"on_{score.stage}_forward", "on_iter_forward"):
        return _unless_set(plan.behaviour("on_iter_loss"))
    if not plan.is_default("on_iter_loss"):
        return plan.behaviour("on_iter_loss")

    def call_criterion(run: Run) -> None:
        batch, criterion = run._state.batch, run.criterion
        if criterion is not None and type(batch) in (list, tuple) and len(batch) == 2:
            run._state.set_loss(criterion(run._state.output, batch[1]))
        else:
            main.on_iter_loss(run)

    return call_criterion


def _unless_set(behaviour: Player) -> Callable[[Run], None]:
    def loss_unless_set(run: Run) -> None:
        if run._state.loss is GONE:
            behaviour(run)

    return loss_unless_set


def _prediction(score: StageScore, play: Callable[[Run], object]) -> Forward:
    after_forward = POINTS["after_forward"]

    def forward(run: Run, compute: Player | None = None) -> bool:
        entered = play if compute is None else action(score, "forward", only_for_effect(compute), SKIP_BATCH)
        if run._state.asked & SKIP_BATCH or entered(run):
            run._state.skip({"forward"})
            return False
        run._state.reach(after_forward)
        return True

    return forward


def without_gradients(forward: Forward, score: StageScore) -> Forward:
    """``forward`` under no_grad, or under inference mode if the main callback says so."""
    mode = torch.inference_mode if score.main.inference_mode else torch.no_grad

    def evaluate(run: Run, compute: Player | None = None) -> bool:
        with mode():
            return forward(run, compute)

    return evaluate
