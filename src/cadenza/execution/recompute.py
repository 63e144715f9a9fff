"""Computes a batch once more inside a step, for optimizers that take a closure and callbacks such as SAM."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor
from torch.optim import Optimizer

from cadenza.engine.state import GONE
from cadenza.execution.action import action
from cadenza.execution.forward import loss_behaviour
from cadenza.execution.step import back_propagation, needs_closure

if TYPE_CHECKING:
    from cadenza.plan import StageScore
    from cadenza.run import Run


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


def step_optimizer(run: Run, optimizer: Optimizer) -> None:
    """Steps ``optimizer``: through the scaler if there is one, with a closure if it needs one."""
    if run.scaler is not None:
        run.scaler.step(optimizer)
    elif needs_closure(optimizer):
        first: list[Tensor] = [run.loss]
        optimizer.step(lambda: first.pop() if first else run.recompute())  # type: ignore[arg-type, return-value]
    else:
        optimizer.step()
