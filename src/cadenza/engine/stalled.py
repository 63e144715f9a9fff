"""Training passes without a step: of a fit that counts steps they have no end, and in a loop of the user's own they
mean that somebody steps past the run. And steps that change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.optim import Optimizer

from cadenza.engine.requests import SKIP_BACKWARD, SKIP_BATCH, STOP
from cadenza.foundation.torch_private import version_of
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.engine.stack import Pass
    from cadenza.run import Run

ENOUGH = 100
"""So many batches in a row without a step, and more than one pass of them, and ``steps`` is taken to be out of reach.
Fewer would take away the first overflows of fp16 from who trains on one batch."""


def mark_weights(run: Run, this: Pass) -> None:
    """Notes where steps and weights stand as a training pass begins."""
    this.marked = (run.clock.steps, _versions(run))


def check_idle(run: Run, this: Pass) -> None:
    """As a training pass ends: tells of steps that passed the run by, and refuses to wait for some that never come."""
    if this.marked is None:  # it failed before its first batch
        return
    steps, versions = this.marked
    if this.without_rate and run.clock.steps != steps:
        _tell_of_no_rate(run, this, run.clock.steps - steps)
    if run.clock.steps != steps or run._state.asked & STOP:
        run._state.count_idle(None)
        return
    before = run._state.idle
    run._state.count_idle(this.index + 1)
    if not before and versions != _versions(run):
        warn(
            "the weights have changed, but the run has made no step: optimizer.step() in a loop of your own passes by "
            "whoever plays at the step (averages, schedules), and clock.steps. Call run.step(), which steps as "
            "on_iter_step of the main callback says"
        )
    if run.num_steps is not None and before and run._state.idle >= ENOUGH:
        raise RuntimeError(
            f"{run._state.idle} batches in a row made no step, so the {run.num_steps} steps would never be reached: "
            "all were skipped or dropped, or a loop of your own steps without run.step()"
        )


def has_no_rate(optimizer: Optimizer) -> bool:
    """Whether something has set the learning rate of ``optimizer`` to 0. One that was made with 0 is meant so; a rate
    that is in a tensor, maybe on a device, is not read."""
    return bool(optimizer.defaults.get("lr")) and all(
        not isinstance(rate := group.get("lr"), Tensor) and rate == 0 for group in optimizer.param_groups
    )


def _tell_of_no_rate(run: Run, this: Pass, steps: int) -> None:
    if run._state.told_of_rate or not run.is_main:
        return
    run._state.tell_of_rate()
    whose = [
        f" of optimizer {number} ({type(optimizer).__name__})"
        for number, optimizer in enumerate(run.optimizers)
        if len(run.optimizers) > 1 and any(optimizer is one for one in this.without_rate)
    ]
    warn(
        f"The learning rate{' and'.join(whose)} was 0 in each of the {steps} steps of epoch {run.epoch + 1}, so they "
        "changed no weight. Either the schedule has ended, or it counts steps and is stepped once an epoch: then write "
        'Trainer(..., scheduler_every="step")'
    )


def check_gradients(run: Run) -> None:
    """In the first batch of a pass, where a loop of the user's own makes a step: tells if there is nothing for it."""
    first = run.stage == "train" and run.clock.steps == run._state.began[1]
    if not first or run._state.stepped_itself or run._state.asked & (SKIP_BATCH | SKIP_BACKWARD):
        return
    groups = [group["params"] for optimizer in run.optimizers for group in optimizer.param_groups]
    if run._state.plan.is_default("on_iter_step") and all(one.grad is None for group in groups for one in group):
        warn("run.step() finds no gradients, so it changes no weight; call run.backward() before it")


def _versions(run: Run) -> list[int]:
    """Torch counts the changes of every tensor; the first weight of each group is enough."""
    groups = [group["params"] for optimizer in run.optimizers for group in optimizer.param_groups]
    return [version_of(parameters[0]) for parameters in groups if parameters and not parameters[0].is_inference()]
