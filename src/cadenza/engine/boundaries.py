"""What the loop decides between two iterations and between two epochs."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

from cadenza.engine.dispatch import fire
from cadenza.engine.requests import (
    END_EPOCH,
    EXCHANGE,
    OF_ITERATION,
    REPLAN,
    SAVE,
    SAVED,
    SKIP_VALIDATION,
    STOP,
    grant,
)
from cadenza.engine.stack import Epoch, Pass
from cadenza.history import Best, unknown_metric
from cadenza.points import MODES, POINTS

if TYPE_CHECKING:
    from cadenza.plan import Plan
    from cadenza.run import Run


def may_open(run: Run, what: str) -> None:
    """Refuses a loop that cannot be opened here."""
    if not run.is_open or run.error is not None:
        raise RuntimeError("the verbs of a run work inside `with trainer.run(...) as run`")
    if threading.get_ident() != run._state.thread:
        raise RuntimeError("a run belongs to the thread that began it; its verbs cannot be used from another")
    if what == "epoch":
        if run.mode != "fit" or any(isinstance(frame, Epoch) for frame in run._state.frames):
            raise RuntimeError("run.epochs() is for fit, once at a time")
        return
    if what not in MODES[run.mode]:
        raise RuntimeError(f"a run in mode {run.mode!r} has no {what} stage")
    if any(isinstance(frame, Pass) and frame.stage == what for frame in run._state.frames):
        raise RuntimeError(f"a {what} pass is already open; the same stage cannot be played inside itself")
    if what == "train" and not (run._state.frames and isinstance(run._state.frames[-1], Epoch)):
        raise RuntimeError("run.train() belongs inside `for _ in run.epochs()`")


def next_epoch(run: Run) -> bool:
    """Whether another epoch follows; if so, ``run.epoch`` is its number."""
    is_open = run._state.resume.position is not None  # it was, and its end is still to be played
    if run._state.asked & STOP or (run.clock.steps >= run._state.last_step and not is_open):
        return False
    if run.num_epochs is not None and run.clock.epochs >= run.num_epochs:
        return False
    run.epoch = run.clock.epochs
    return True


def decide(run: Run, this: Pass) -> None:
    """The processes that train together decide on what was asked, between two iterations."""
    grant(run, run._state.processes.decide(run, this))


def settle_requests(run: Run) -> None:
    """The same at the boundary of a pass, an epoch or the run."""
    grant(run, run._state.processes.settle(run))


def between_iterations(run: Run, this: Pass) -> bool:
    """Does what was asked: save, then the end of the epoch, then stop. False if no further batch is wanted."""
    asked = run._state.asked
    run._state.drop(OF_ITERATION)
    if asked & REPLAN:
        replan(run)
    if asked & EXCHANGE:
        run._state.drop(EXCHANGE)
        run._state.exchange(run)
    if asked & SAVED:
        tell_saved(run)
    if this.training:
        if asked & SAVE:
            serve_save(run)
        if has_all_steps(run, this):
            return False
    return not asked & (END_EPOCH | STOP)


def has_all_steps(run: Run, this: Pass) -> bool:
    """Whether the fit has made all its steps; if so, whether the pass was whole is noted."""
    if run.clock.steps < run._state.last_step:
        return False
    this.complete = this.is_at_end()
    return True


def between_epochs(run: Run) -> None:
    """Does what was asked, and closes callbacks that were removed; what they held around the epoch is left by now."""
    asked = run._state.asked
    run._state.drop(SKIP_VALIDATION)
    while run._state.removed:
        run._state.removed.pop(0).close()
    if asked & REPLAN:
        replan(run)
    if asked & SAVED:
        tell_saved(run)
    if asked & SAVE:
        serve_save(run)


def serve_save(run: Run) -> None:
    """Plays ``before_save`` and lets the callback that owns it save."""
    run._state.drop(SAVE)
    if run._state.plan.saver is not None:
        if run._state.held:
            run._state.processes.settle_held(
                run, run._state.current
            )  # so that the gradients of one process are those of all
        fire(run, POINTS["before_save"], run._state.plan.before_save)
        run._state.plan.saver(run)


def tell_saved(run: Run) -> None:
    """Plays ``after_save`` once for every checkpoint that was committed since the last time."""
    run._state.drop(SAVED)
    while run._state.committed:
        run.saved = run._state.committed.pop(0)
        fire(run, POINTS["after_save"], run._state.plan.after_save)


def replan(run: Run) -> None:
    """Callbacks were added or removed: works out anew who plays, between two iterations."""
    run._state.drop(REPLAN)
    old, new = run._state.plan, run._state.make_plan(run)
    new.claim(run)
    old.release()
    follow(run, new)
    new.begin(run)
    gone = (callback for callback in old.callbacks if not any(callback is one for one in new.callbacks))
    run._state.removed.extend(gone)
    for callback in new.callbacks:
        if not any(callback is one for one in old.callbacks):
            fire(run, POINTS["after_register"], run._state.plan.own(callback, "after_register"))


def follow(run: Run, plan: Plan) -> None:
    """From here on ``plan`` is played, in the passes that are open too."""
    run._state.follow_plan(plan)
    for frame in run._state.frames:
        if isinstance(frame, Pass):
            frame.score = plan.stages[frame.stage]
    if isinstance(run._state.current, Pass):
        run._state.use_verbs(run._state.current.score.verbs)


def exchange(run: Run, plan: Plan) -> None:
    """Plays ``plan`` in the place of the present one, of the same callbacks: one that times them, or the plain one."""
    plan._handles = run._state.plan._handles
    follow(run, plan)


def refuse_unknown_watch(run: Run) -> None:
    """At the end of an epoch: the stage of the watched metric has measured others, but not this one."""
    watch = run._state.plan.watch
    if watch is not None and watch.name not in run.metrics:
        stage = watch.name.split("/")[0]
        if any(name.startswith(f"{stage}/") for name in run.metrics):
            raise KeyError(f"{watch.who} watches it, but there is {unknown_metric(watch.name, run.metrics)}")


def check_best(run: Run, prefix: str = "") -> None:
    """Compares the watched metric with the best so far, and plays ``after_best``; equal is not better, nor is NaN.
    With ``prefix``, only if it is one of those that a pass just measured."""
    watch = run._state.plan.watch
    if watch is None or run.mode != "fit" or not watch.name.startswith(prefix) or watch.name not in run.metrics:
        return
    value, best = run.metrics[watch.name], run.best
    if math.isnan(value):
        return
    if best is None or best.name != watch.name or watch.better(value, best.value):
        run.training_state.best = Best(watch.name, value, run.epoch, run.clock.steps)
        fire(run, POINTS["after_best"], run._state.plan.after_best)
