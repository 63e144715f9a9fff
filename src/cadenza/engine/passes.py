"""Spans that stay open while the caller's code runs: the epoch and the pass over a loader.

They live on a stack in the run, not in the generators that open them: a generator that is closed cannot tell
``break`` from an exception, and what it raises then is lost. So a closed generator only leaves what is held around
its spans; the ``after_*`` points are played by the next verb, or at the end of the run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from opcode import opname
from types import FrameType
from typing import TYPE_CHECKING, Any

from cadenza.data import Feed
from cadenza.engine import boundaries
from cadenza.engine.dispatch import enter, fire, leave, out_of_a_generator
from cadenza.engine.iteration import begin_iteration, end_iteration, end_of_loader, fetch_with_others, release, take
from cadenza.engine.open_loader import begin_reading
from cadenza.engine.requests import END_EPOCH, OF_ITERATION, OF_PASS, REPLAN, SKIP_BATCH, SKIP_VALIDATION, STOP
from cadenza.engine.stack import Epoch, Frame, Pass, each_verb, take_back, verbs_of
from cadenza.engine.stalled import check_idle, mark_weights
from cadenza.foundation.module_modes import flags_of
from cadenza.points import POINTS

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
    """The loop over ``frame`` was left: lets go of what is held in it and above it.

    An exception of the caller's own code is not known yet, so what it must be told to is left when it is: at the end of
    the run, or if it was caught before, by the next verb.
    """
    if frame.closed:
        return
    run._verbs = _SETTLING_VERBS
    known = run._failing is not None or left_by_break(sys._getframe(2))
    for above in reversed(run._open[run._open.index(frame) :]):
        above.abandoned = True
        if not known:
            continue
        try:
            above.leave(run, run._failing)
        except BaseException as error:
            run._owed = run._owed or error  # raised here it would be lost: the next verb raises it


def left_by_break(caller: FrameType | None) -> bool:
    """Whether ``caller`` is leaving a loop by break or return rather than by an exception.

    Closing a generator tells it nothing, but the instruction at which the caller stands does: break and return drop the
    iterator by an instruction of their own. An iterator that wraps ours (tqdm) stands at its yield; its caller counts.
    """
    while caller is not None:
        instruction = opname[caller.f_code.co_code[caller.f_lasti]]
        if instruction not in ("YIELD_VALUE", "RESUME"):
            return instruction in ("POP_TOP", "POP_ITER")
        caller = caller.f_back
    return False


def settle(run: Run, frame: Frame | None = None) -> None:
    """Ends abandoned frames; with ``frame``, everything above it, since the loop over ``frame`` goes on."""
    if run._owed is not None:
        owed, run._owed = run._owed, None
        raise owed
    while run._open and (run._open[-1].abandoned if frame is None else run._open[-1] is not frame):
        top = run._open[-1]
        top.abandoned = False
        top.leave(run, None)
        finish(run, top)
    run._verbs = verbs_of(run)


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
    while boundaries.next_epoch(run):
        boundaries.may_open(run, "epoch")
        this = Epoch()
        try:
            begin_epoch(run, this)
            yield run.epoch
            if this.closed:
                return
            settle(run, this)
            end_epoch(run, this)
        except GeneratorExit:
            abandon(run, this)
            raise
        except StopIteration as error:
            run._failing = out_of_a_generator(run, error)
            raise run._failing from error
        except BaseException as error:
            run._failing = error
            raise


def begin_epoch(run: Run, this: Epoch) -> None:
    run._open.append(this)
    run._epoch = this
    run._first_row_of_epoch = len(run.history)
    run._asked &= ~(OF_ITERATION | OF_PASS)
    plan = run._plan
    run._resume.reopen_epoch(run)
    if plan.before_epoch:
        fire(run, POINTS["before_epoch"], plan.before_epoch)
    if plan.around_epoch:
        enter(run, POINTS["around_epoch"], plan.around_epoch, this.exits)


def end_epoch(run: Run, this: Epoch) -> None:
    """The learning rate, the best value, the end of the epoch, and what was asked for there."""
    plan = run._plan
    counts = this.trained or not (run._asked & STOP or run.clock.steps >= run._last_step)
    if counts and not run._asked & STOP and plan.lr_every == "epoch":
        plan.adjust_lr(run)
    boundaries.check_best(run)
    leave(run, POINTS["around_epoch"], this.exits, None)
    if counts:
        run.clock.epochs += 1
    if plan.after_epoch:
        fire(run, POINTS["after_epoch"], plan.after_epoch)
    run._processes.end_epoch(run)
    if plan.after_epoch:
        boundaries.check_best(run)  # again, since it may have been logged only now
    boundaries.refuse_unknown_watch(run)
    run._write_row("epoch")
    run._open.pop().closed = True
    boundaries.between_epochs(run)


# The pass over a loader ---------------------------------------------------------------------------------------------


def go_over(run: Run, stage: str, loader: Iterable[Any] | None, name: str | None) -> Iterator[Any]:
    """One pass of ``stage`` over ``loader``: yields each batch, and ends its iteration when the next is asked for."""
    settle(run)
    boundaries.may_open(run, stage)
    if run._asked & REPLAN:
        boundaries.replan(run)
    run._processes.settle(run)
    if run._asked & STOP or (stage == "val" and run._asked & SKIP_VALIDATION):
        return
    if run._resume.skips(run, stage, name):
        return
    this = Pass(run, stage, name)
    try:
        ended = begin_pass(run, this, loader)
        while not (run._asked & _NO_FURTHER or ended):
            found = fetch_with_others(run, this) if this.score.plays_fetch else take(run, this)
            if run._processes.many:
                found = run._processes.keep_step(run, this, found)
            if not found:
                end_of_loader(run, this)
                break
            begin_iteration(run, this)
            if not run._asked & SKIP_BATCH:
                yield run._batch
                if this.closed:
                    return
                if run._open[-1] is not this:
                    settle(run, this)
            if not end_iteration(run, this):
                break
        end_pass(run, this)
    except GeneratorExit:
        abandon(run, this)
        raise
    except StopIteration as error:
        run._failing = out_of_a_generator(run, error)
        raise run._failing from error
    except BaseException as error:
        run._failing = error
        raise


def begin_pass(run: Run, this: Pass, loader: Iterable[Any] | None) -> bool:
    """Opens a pass. Answers whether it had all its steps before the run was interrupted: only its end is played."""
    if not this.training:
        if run._open:
            run._resume.arrive(run)
        if run.mode == "fit" and run._plan.saver is not None and isinstance(run._open[-1], Epoch):
            this.beginning = run.training_state.beginning(run)  # what a save within this evaluation would save
    run._open.append(this)
    run._pass = this
    run._verbs = this.score.verbs
    run._forwarded = -1
    run.stage, run.loader_name = this.stage, this.name
    run.metrics.clear_stage(this.prefix)
    set_mode(run, this)
    score = this.score
    this.loader = loader if loader is not None else loader_for(run, this.stage)
    remember_loader(run, this)
    run._resume.reopen_pass(run, this)
    if score.before_stage_epoch:
        fire(run, score.at_before_epoch, score.before_stage_epoch)
    if score.around_stage_epoch:
        enter(run, score.at_around_epoch, score.around_stage_epoch, this.exits)
    if loader is None:
        this.loader = loader_for(run, this.stage)  # a callback may have replaced it
    begin_reading(run, this)
    if this.training:
        mark_weights(run, this)
        if not this.resumed and (run.clock.epochs, run.clock.steps) == run._began:
            run._plan.tell_of_schedulers(run)
    run._processes.begin_pass(run, this)
    if run._resume.is_resuming:
        run._resume.arrive(run)
        return this.training and boundaries.has_all_steps(run, this)
    return False


def set_mode(run: Run, this: Pass) -> None:
    """Training trains; whatever else notes each module's own flag, which comes back at its end."""
    if this.training:
        if not run.module.training:
            run.module.train()
    else:
        this.flags = flags_of(run.module)
        run.module.eval()


def remember_loader(run: Run, this: Pass) -> None:
    """In a loop of the user's own, callbacks see the loaders that were given to the verbs."""
    if this.stage == "train" and run.train_loader is None:
        run.train_loader = this.loader
    elif this.stage == "val" and run.val_loader is None:
        run.val_loader = this.loader


def loader_for(run: Run, stage: str) -> Any:
    loader = run.train_loader if stage == "train" else run.val_loader
    if loader is None:
        raise ValueError(f"there is no {stage} loader: give one to the verb or to fit")
    return loader


def end_pass(run: Run, this: Pass) -> None:
    score = this.score
    if run._held and this.stage == "train" and not run._asked & STOP:
        release(run, this)  # the loader ended sooner than it said
    if this.training and not this.resumed:
        check_idle(run, this)
    leave(run, score.at_around_epoch, this.exits, None)
    this.restore_flags()
    if isinstance(this.feed, Feed):
        this.feed.end()
    run._last_loss = run._last_output = None
    whole = this.complete or bool(run._asked & END_EPOCH)
    mean, logged = run._processes.over_pass(run, this)
    counts = this.complete or this.stage == "train" or not run._asked & STOP
    run._log_over_pass(this.prefix, mean, logged, counts=counts)
    if this.stage == "train" and whole:
        run._epoch.trained = True
    if score.after_stage_epoch:
        fire(run, score.at_after_epoch, score.after_stage_epoch)
    run._processes.end_pass(run)
    run._write_row("pass")
    run._open.pop().closed = True
    take_back(run, this.outer)
    if run._open and isinstance(run._open[-1], Epoch):
        run._open[-1].done.append((this.stage, this.name))
    if this.stage == "val" and whole and run._pass.iterating:
        boundaries.check_best(run, this.prefix)
