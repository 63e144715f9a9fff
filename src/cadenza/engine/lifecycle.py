"""How a run begins, ends in order, and ends with an exception."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cadenza.data import Feed
from cadenza.engine import boundaries, passes
from cadenza.engine.dispatch import enter, fire, leave, note, note_further
from cadenza.engine.open_loader import restore_unread
from cadenza.engine.requests import SAVE
from cadenza.engine.run_names import warn_of_set_names
from cadenza.foundation.rng import seed_everything
from cadenza.foundation.warn import warn
from cadenza.history import unknown_metric
from cadenza.points import POINTS

if TYPE_CHECKING:
    from cadenza.run import Run


def seed(run: Run) -> None:
    """Seeds all generators, once in the life of a trainer.

    A run that is resumed needs this too: its checkpoint holds the generators of its own device, and no others.
    """
    training = run.training_state
    if training.seed is not None and not training.seeded:
        seed_everything(training.seed + run.rank)
        training.seeded = True


def begin(run: Run) -> None:
    """Sets everything up and plays ``before_run``."""
    plan, training = run._state.plan, run.training_state
    move_to(run.device, run.module, run.criterion, run.optimizers)
    run._state.join(training.strategy.begin(run))
    if run.mode == "fit":
        seed(run)
        clear_gradients(run)
        run.clock.start()
        run._state.resume.load(run, plan.callbacks)
    plan.begin(run)
    for callback in plan.callbacks:
        fire(run, POINTS["after_register"], plan.own(callback, "after_register"))
    if not training.launched:
        training.launched = True
        fire(run, POINTS["after_launch"], plan.after_launch)
    fire(run, POINTS["before_run"], run._state.plan.before_run)  # by now it may be one that times its players
    enter(run, POINTS["around_run"], run._state.plan.around_run, run._state.exits)
    plan.check(run)
    run._state.resume.loaded(run)


def move_to(device: torch.device, module: nn.Module, criterion: object, optimizers: Sequence[Optimizer]) -> None:
    """Everything that a step takes goes to ``device``: a criterion may have weights, and an optimizer may have loaded
    its state before the parameters were moved."""
    moves = any(parameter.device != device for parameter in module.parameters())
    module.to(device)
    if isinstance(criterion, nn.Module):
        criterion.to(device)
    for optimizer in optimizers if moves else ():
        follow(optimizer)


def follow(optimizer: Optimizer) -> None:
    """What ``optimizer`` keeps of its parameters goes to where they are; the count of steps may stay on the CPU."""
    for parameter, state in optimizer.state.items():
        if any(isinstance(part, Tensor) and part.dim() and part.device != parameter.device for part in state.values()):
            optimizer.load_state_dict(optimizer.state_dict())  # torch puts each part where it belongs
            return


def clear_gradients(run: Run) -> None:
    """Gradients that an aborted fit left behind would change the first step of this one."""
    for parameter in run.module.parameters():
        parameter.grad = None
    for optimizer in run.optimizers:
        optimizer.zero_grad()


def finish(run: Run) -> None:
    """Ends whatever is still open, plays ``after_run``, and closes the callbacks."""
    for frame in run._state.frames:
        frame.abandoned = True
    passes.settle(run)
    leave(run, POINTS["around_run"], run._state.exits, None)
    if run.mode != "fit":
        run._write_row("epoch")
    fire(run, POINTS["after_run"], run._state.plan.after_run)
    boundaries.settle_requests(run)
    run._write_row("epoch")
    run._state.begin_last_save()
    run._state.resume.leave(run)
    if run._state.asked & SAVE:
        boundaries.serve_save(run)
    boundaries.tell_saved(run)
    restore_unread(run)
    warn_of_what_never_came(run)
    warn_of_set_names(run)
    close(run, None)


def warn_of_what_never_came(run: Run) -> None:
    """After a whole fit: metrics that somebody follows and nobody measured, and what callbacks have waited for."""
    if run.mode != "fit":
        return
    whole = run.clock.epochs - (run.stop_reason is not None)  # one that was stopped may have had no validation
    followed = {callback.monitor: callback.name for callback in reversed(run._state.plan.callbacks) if callback.monitor}
    for metric, who in followed.items():
        if whole > 0 and metric not in run.history:
            warn(f"{who} watches {unknown_metric(metric, run.metrics)}")
    if run.stop_reason is None:
        for said in filter(None, (callback._waits_for(run) for callback in run._state.plan.callbacks)):
            warn(said)


def fail(run: Run, error: BaseException) -> BaseException:
    """Ends everything after an exception: leaves all that is held, tells the callbacks, closes them. Returns what is to
    be raised: under many processes what one of them raised first, and otherwise ``error``."""
    if run.error is not None:
        return error
    note(run, error, f"the loop after {run._state.at.name}" if run._state.at else "the run")
    error = run._state.processes.failed(run, error)
    run.error = error
    if run._state.owed not in (None, error):
        note_further(error, run._state.owed, "an around that was left by break")
    for frame in reversed(run._state.frames):
        frame.leave(run, error)
        frame.closed = True
    leave(run, POINTS["around_run"], run._state.exits, error)
    for player in run._state.plan.after_error:
        try:
            fire(run, POINTS["after_error"], (player,))
        except BaseException as further:
            note_further(error, further, f"{run._state.plan.label('after_error', player)} at after_error")
    run._state.frames.clear()
    run._state.forget()
    run.stage = None
    run._state.set_current(run._state.outside)
    close(run, error)
    run._state.processes.rest()
    return error


def close(run: Run, error: BaseException | None) -> None:
    """Closes every callback, whatever the others do; the first error of an orderly end is raised. The experiment is
    the last one: until then the others may write into its folder, and nobody else does."""
    run._state.end()
    run._state.processes.end()
    if run.mode == "fit":
        run.clock.pause()
        run.training_state.stop_reason = run.stop_reason
    first: BaseException | None = None
    closing = sorted((*run._state.plan.callbacks, *run._state.removed), key=lambda callback: callback is run.experiment)
    ends = [(f"{callback._label or callback.name}.close", callback.close) for callback in closing]
    ends += [
        (f"closing the {name} loader", feed.close)
        for name, (_, feed) in run._state.feeds.items()
        if isinstance(feed, Feed)
    ]
    for where, end in ends:
        try:
            end()
        except BaseException as late:
            if error is None:
                late.add_note(f"cadenza: raised in {where}")
                first = first or late
            else:
                note_further(error, late, where)
    run._state.resume.release()
    run._state.plan.end(run)
    run._state.plan.executor.end()
    run._state.set_fields()
    run._state.let_go()
    if first is not None:
        run.error = first
        raise first
