"""Spans that stay open while the caller's code runs: the epoch and the pass over a loader.

They live on a stack in the run, not in the generators that open them: a generator that is closed cannot tell
``break`` from an exception, and what it raises then is lost. So a closed generator only leaves what is held around
its spans; the ``after_*`` points are played by the next verb, or at the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from cadenza import decisions
from cadenza.frames import Epoch, Frame, Pass, take_back
from cadenza.iteration import begin_iteration, end_iteration, end_of_loader, fetch_with_others, release, take
from cadenza.points import POINTS
from cadenza.requests import END_EPOCH, OF_ITERATION, OF_PASS, SKIP_BATCH, SKIP_VALIDATION, STOP
from cadenza.spans import enter, fire, leave
from cadenza.verbs import each_verb

if TYPE_CHECKING:
    from cadenza.run import Run

_NO_FURTHER = END_EPOCH | STOP


def _settling(verb: str) -> Callable[..., Any]:
    """A verb of an abandoned pass: it ends that first, and then acts on what is open around it."""

    def settle_first(run: Run, *args: Any) -> Any:
        settle(run)
        return getattr(run._verbs, verb)(run, *args)

    return settle_first


_SETTLING_VERBS = each_verb(_settling)


# The stack ----------------------------------------------------------------------------------------------------------


def abandon(run: Run, frame: Frame) -> None:
    """The loop over ``frame`` was left by break or return: lets go of what is held in it and above it."""
    if frame not in run._open:
        return
    run._verbs = _SETTLING_VERBS
    for above in reversed(run._open[run._open.index(frame) :]):
        above.abandoned = True
        above.leave(run, run._failing)


def settle(run: Run, frame: Frame | None = None) -> None:
    """Ends abandoned frames; with ``frame``, everything above it, since the loop over ``frame`` goes on."""
    while run._open and (run._open[-1].abandoned if frame is None else run._open[-1] is not frame):
        top = run._open[-1]
        top.abandoned = False
        top.leave(run, None)
        finish(run, top)


def finish(run: Run, frame: Frame) -> None:
    """Plays what an abandoned frame still owes, and takes it off the stack."""
    if isinstance(frame, Pass):
        if frame.iterating:
            end_iteration(run, frame)
        end_pass(run, frame)
    elif isinstance(frame, Epoch):
        end_epoch(run, frame)


# The epoch ----------------------------------------------------------------------------------------------------------


def epochs(run: Run) -> Iterator[int]:
    """The epochs of a fit, one after the other."""
    while decisions.next_epoch(run):
        this = Epoch()
        begin_epoch(run, this)
        try:
            yield run.epoch
        except GeneratorExit:
            abandon(run, this)
            raise
        settle(run, this)
        end_epoch(run, this)


def begin_epoch(run: Run, this: Epoch) -> None:
    run._open.append(this)
    run._epoch = this
    run._asked &= ~(OF_ITERATION | OF_PASS)
    plan = run._plan
    if plan.before_epoch:
        fire(run, POINTS["before_epoch"], plan.before_epoch)
    if plan.around_epoch:
        enter(run, POINTS["around_epoch"], plan.around_epoch, this.exits)


def end_epoch(run: Run, this: Epoch) -> None:
    """The learning rate, the best value, the end of the epoch, and what was asked for there."""
    plan = run._plan
    counts = this.trained or not (run._asked & STOP or run.clock.steps >= run._last_step)
    if counts and not run._asked & STOP and run.main.lr_every == "epoch":
        plan.adjust_lr(run)
    decisions.check_best(run)
    leave(run, POINTS["around_epoch"], this.exits, None)
    if counts:
        run.clock.epochs += 1
    if plan.after_epoch:
        fire(run, POINTS["after_epoch"], plan.after_epoch)
    run._write_row("epoch")
    run._open.pop()
    decisions.between_epochs(run)


# The pass over a loader ---------------------------------------------------------------------------------------------


def go_over(run: Run, stage: str, loader: Iterable[Any] | None, name: str | None) -> Iterator[Any]:
    """One pass of ``stage`` over ``loader``: yields each batch, and ends its iteration when the next is asked for."""
    settle(run)
    decisions.may_open(run, stage)
    if run._asked & STOP or (stage == "val" and run._asked & SKIP_VALIDATION):
        return
    this = Pass(run, stage, name)
    begin_pass(run, this, loader)
    try:
        while not run._asked & _NO_FURTHER:
            if not (fetch_with_others(run, this) if this.score.plays_fetch else take(run, this)):
                end_of_loader(run, this)
                break
            begin_iteration(run, this)
            if not run._asked & SKIP_BATCH:
                yield run._batch
            if run._open[-1] is not this:
                settle(run, this)
            if not end_iteration(run, this):
                break
    except GeneratorExit:
        abandon(run, this)
        raise
    end_pass(run, this)


def begin_pass(run: Run, this: Pass, loader: Iterable[Any] | None) -> None:
    run._open.append(this)
    run._pass = this
    run._verbs = this.score.verbs
    run._forwarded = -1
    run.stage, run.loader_name = this.stage, this.name
    run.metrics.clear_stage(this.prefix)
    if this.stage == "train":
        if not run.module.training:
            run.module.train()
    else:
        this.flags = [(module, module.training) for module in run.module.modules()]
        run.module.eval()
    score = this.score
    this.loader = loader if loader is not None else loader_for(run, this.stage)
    if score.before_stage_epoch:
        fire(run, score.point["before_stage_epoch"], score.before_stage_epoch)
    if score.around_stage_epoch:
        enter(run, score.point["around_stage_epoch"], score.around_stage_epoch, this.exits)
    if loader is None:
        this.loader = loader_for(run, this.stage)  # a callback may have replaced it
    this.iterator = iter(this.loader)


def loader_for(run: Run, stage: str) -> Any:
    loader = run.train_loader if stage == "train" else run.val_loader
    if loader is None:
        raise ValueError(f"there is no {stage} loader: give one to the verb or to fit")
    return loader


def end_pass(run: Run, this: Pass) -> None:
    score = this.score
    if run._held and this.stage == "train" and not run._asked & STOP:
        release(run, this)  # the loader ended sooner than it said
    leave(run, score.point["around_stage_epoch"], this.exits, None)
    this.restore_flags()
    if this.stage == "train" and (this.complete or run._asked & END_EPOCH):
        run._epoch.trained = True
    mean = this.mean.value()
    if mean is not None and (this.complete or this.stage == "train" or not run._asked & STOP):
        run.log(this.prefix + "loss", mean)
    if score.after_stage_epoch:
        fire(run, score.point["after_stage_epoch"], score.after_stage_epoch)
    run._write_row("pass")
    run._open.pop()
    take_back(run, this.outer)
    if this.stage == "val" and this.complete and run._pass.iterating:
        decisions.check_best(run)
