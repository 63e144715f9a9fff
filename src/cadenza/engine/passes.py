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
from cadenza.engine.iteration import begin_iteration, end_iteration, end_of_loader, next_batch, release
from cadenza.engine.open_loader import begin_reading
from cadenza.engine.requests import END_EPOCH, OF_ITERATION, OF_PASS, REPLAN, SKIP_BATCH, SKIP_VALIDATION, STOP, grant
from cadenza.engine.stack import Epoch, Frame, Pass, each_verb, take_back, verbs_of
from cadenza.engine.stalled import check_idle, mark_weights
from cadenza.foundation.module_modes import flags_of
from cadenza.points import POINTS

if TYPE_CHECKING:
    from cadenza.run import Run

_NO_FURTHER = END_EPOCH | STOP
_READS_INSTRUCTIONS = sys.implementation.name == "cpython"


def _settling(verb: str) -> Callable[..., Any]:
    """A verb of an abandoned pass: it ends that first, then acts on what is open around it."""

    def settle_first(run: Run, *args: Any) -> Any:
        settle(run)
        return getattr(run._state.verbs, verb)(run, *args)

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
    run._state.use_verbs(_SETTLING_VERBS)
    known = run._state.failing is not None or left_by_break(sys._getframe(2))
    for above in reversed(run._state.frames[run._state.frames.index(frame) :]):
        above.abandoned = True
        try:
            if known:
                above.leave(run, run._state.failing)
        except BaseException as error:
            run._state.owe(run._state.owed or error)  # raised here it would be lost: the next verb raises it


def left_by_break(caller: FrameType | None) -> bool:
    """Whether ``caller`` is leaving a loop by break or return rather than by an exception.

    Closing a generator tells it nothing, but the instruction at which the caller stands does: break and return drop the
    iterator by an instruction of their own. An iterator that wraps ours (tqdm) stands at its yield; its caller counts.
    On another interpreter what is held around the pass is left at the next verb (docs/decisions/0002).
    """
    while caller is not None and _READS_INSTRUCTIONS:
        instruction = opname[caller.f_code.co_code[caller.f_lasti]]
        if instruction not in ("YIELD_VALUE", "RESUME"):
            return instruction in ("POP_TOP", "POP_ITER")
        caller = caller.f_back
    return False


def settle(run: Run, frame: Frame | None = None) -> None:
    """Ends abandoned frames; with ``frame``, everything above it, since the loop over ``frame`` goes on."""
    if run._state.owed is not None:
        owed = run._state.owed
        run._state.owe(None)
        raise owed
    while run._state.frames and (
        run._state.frames[-1].abandoned if frame is None else run._state.frames[-1] is not frame
    ):
        top = run._state.frames[-1]
        top.abandoned = False
        top.leave(run, None)
        finish(run, top)
    run._state.use_verbs(verbs_of(run))


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
            run._state.fail(instead := out_of_a_generator(run, error))
            raise instead from error
        except BaseException as error:
            run._state.fail(error)
            raise


def begin_epoch(run: Run, this: Epoch) -> None:
    run._state.open_epoch(this, len(run.history))
    run._state.drop(OF_ITERATION | OF_PASS)
    plan = run._state.plan
    run._state.resume.reopen_epoch(run)
    if plan.before_epoch:
        fire(run, POINTS["before_epoch"], plan.before_epoch)
    if plan.around_epoch:
        enter(run, POINTS["around_epoch"], plan.around_epoch, this.exits)


def end_epoch(run: Run, this: Epoch) -> None:
    """The learning rate, the best value, the end of the epoch, and what was asked for there."""
    plan = run._state.plan
    counts = this.trained or not (run._state.asked & STOP or run.clock.steps >= run._state.last_step)
    if counts and not run._state.asked & STOP and plan.lr_every == "epoch":
        plan.adjust_lr(run)
    boundaries.check_best(run)
    leave(run, POINTS["around_epoch"], this.exits, None)
    if counts:
        run.clock.epochs += 1
    if plan.after_epoch:
        fire(run, POINTS["after_epoch"], plan.after_epoch)
    grant(run, run._state.processes.end_epoch(run))
    if plan.after_epoch:
        boundaries.check_best(run)  # again, since it may have been logged only now
    boundaries.refuse_unknown_watch(run)
    run._write_row("epoch")
    run._state.frames.pop().closed = True
    boundaries.between_epochs(run)


# The pass over a loader ---------------------------------------------------------------------------------------------


def go_over(run: Run, stage: str, loader: Iterable[Any] | None, name: str | None) -> Iterator[Any]:
    """One pass of ``stage`` over ``loader``: yields each batch, and ends its iteration when the next is asked for."""
    if not is_wanted(run, stage, name):
        return
    this = Pass(run, stage, name)
    try:
        ended = begin_pass(run, this, loader)
        while not (run._state.asked & _NO_FURTHER or ended):
            if not next_batch(run, this):
                end_of_loader(run, this)
                break
            begin_iteration(run, this)
            if not run._state.asked & SKIP_BATCH:
                yield run._state.batch
                if this.closed:
                    return
                if run._state.frames[-1] is not this:
                    settle(run, this)
            if not end_iteration(run, this):
                break
        end_pass(run, this)
    except GeneratorExit:
        abandon(run, this)
        raise
    except StopIteration as error:
        run._state.fail(instead := out_of_a_generator(run, error))
        raise instead from error
    except BaseException as error:
        run._state.fail(error)
        raise


def is_wanted(run: Run, stage: str, name: str | None) -> bool:
    """Whether a pass of ``stage`` may begin now and was not done, or asked not to be done, before."""
    settle(run)
    boundaries.may_open(run, stage)
    if run._state.asked & REPLAN:
        boundaries.replan(run)
    boundaries.settle_requests(run)
    if run._state.asked & STOP or (stage == "val" and run._state.asked & SKIP_VALIDATION):
        return False
    return not run._state.resume.skips(run, stage, name)


def begin_pass(run: Run, this: Pass, loader: Iterable[Any] | None) -> bool:
    """Opens a pass. Answers whether it had all its steps before the run was interrupted: only its end is played."""
    if not this.training:
        if run._state.frames:
            run._state.resume.arrive(run)
        if run.mode == "fit" and run._state.plan.saver is not None and isinstance(run._state.frames[-1], Epoch):
            this.beginning = run.training_state.beginning(run)  # what a save within this evaluation would save
    run._state.open_pass(this)
    run.stage, run.loader_name = this.stage, this.name
    run.metrics.clear_stage(this.prefix)
    set_mode(run, this)
    score = this.score
    this.loader = loader if loader is not None else loader_for(run, this.stage)
    remember_loader(run, this)
    run._state.resume.reopen_pass(run, this)
    if score.before_stage_epoch:
        fire(run, score.at_before_epoch, score.before_stage_epoch)
    if score.around_stage_epoch:
        enter(run, score.at_around_epoch, score.around_stage_epoch, this.exits)
    if loader is None:
        this.loader = loader_for(run, this.stage)  # a callback may have replaced it
    begin_reading(run, this)
    if this.training:
        mark_weights(run, this)
        if not this.resumed and (run.clock.epochs, run.clock.steps) == run._state.began:
            run._state.plan.tell_of_schedulers(run)
    run._state.processes.begin_pass(run, this)
    run._state.resume.arrive(run)
    return this.training and this.resumed and boundaries.has_all_steps(run, this)


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
    if run._state.held and this.training and not run._state.asked & STOP:
        release(run, this)  # the loader ended sooner than it said
    if this.training and not this.resumed:
        check_idle(run, this)
    leave(run, score.at_around_epoch, this.exits, None)
    this.restore_flags()
    if isinstance(this.feed, Feed):
        this.feed.end()
    run._state.let_go()
    whole = this.complete or bool(run._state.asked & END_EPOCH)
    log_over_pass(run, this)
    if this.training and whole:
        run._state.epoch_frame.trained = True
    if score.after_stage_epoch:
        fire(run, score.at_after_epoch, score.after_stage_epoch)
    run._state.processes.end_pass(run)
    run._write_row("pass")
    run._state.frames.pop().closed = True
    take_back(run, this.outer)
    if run._state.frames and isinstance(run._state.frames[-1], Epoch):
        run._state.frames[-1].done.append((this.stage, this.name))
    if this.stage == "val" and whole and run._state.current.iterating:
        boundaries.check_best(run, this.prefix)


def log_over_pass(run: Run, this: Pass) -> None:
    """Logs the mean loss of the pass, if it was not an evaluation that was stopped, and what its iterations logged."""
    mean, logged = run._state.processes.over_pass(run, this)
    counts = this.complete or this.training or not run._state.asked & STOP
    run._log_over_pass(this.prefix, mean, logged, counts=counts)
