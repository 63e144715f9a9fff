"""One iteration: the fetch of a batch, its beginning and its end. What happens in between is the caller's body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cadenza.data import Feed, count_samples, length_of, to_device
from cadenza.engine import boundaries
from cadenza.engine.dispatch import blame_loader, enter, fire, hold, leave
from cadenza.engine.requests import (
    END_EPOCH,
    HOLD_STEP,
    OF_ITERATION,
    SKIP_BATCH,
    SKIP_STEP,
    SKIP_ZERO_GRAD,
    STOP,
    actions_from,
)
from cadenza.engine.stack import END, Pass
from cadenza.engine.stalled import has_no_rate
from cadenza.engine.state import GONE, UNWEIGHTED
from cadenza.points import POINTS

if TYPE_CHECKING:
    from cadenza.run import Run

_BEFORE_FETCH, _AROUND_FETCH, _AFTER_FETCH = (POINTS[f"{kind}_fetch"] for kind in ("before", "around", "after"))
_BEFORE_ITER, _AROUND_ITER, _AFTER_ITER = (POINTS[f"{kind}_iter"] for kind in ("before", "around", "after"))


def next_batch(run: Run, this: Pass) -> bool:
    """Fetches the next batch; False if there is none, on any of the processes that train together."""
    found = fetch_with_others(run, this) if this.score.plays_fetch else take(run, this)
    return run._state.processes.keep_step(run, this, found) if run._state.processes.many else found


def fetch_with_others(run: Run, this: Pass) -> bool:
    """The fetch span: waits for the next batch and puts it on the device; False at the end of the loader."""
    score = this.score
    if score.before_fetch:
        fire(run, _BEFORE_FETCH, score.before_fetch)
    if score.around_fetch:
        found = bool(hold(run, _AROUND_FETCH, score.around_fetch, lambda run: take(run, this)))
    else:
        found = take(run, this)
    if score.after_fetch:
        fire(run, _AFTER_FETCH, score.after_fetch)
    return found


def end_of_loader(run: Run, this: Pass) -> None:
    if this.index < 0:
        hint = ""
        if isinstance(this.loader, Iterator):
            hint = f": it is a {type(this.loader).__name__}, which can be gone over once; give something that can be "
            hint += "iterated anew, such as a DataLoader or a list of batches"
        raise ValueError(f"the {this.stage} loader{f' {this.name!r}' if this.name else ''} gave no batch{hint}")
    this.complete = True
    run._state.drop(OF_ITERATION)


def take(run: Run, this: Pass) -> bool:
    """Sets ``run.batch`` to the next batch of the loader, or to the one that was looked at ahead."""
    batch = this.ahead
    if batch is END:
        if this.exhausted:
            return False
        try:
            batch = next(this.iterator)
        except StopIteration:
            this.exhausted = True
            return False
        except BaseException as error:
            blame_loader(run, this, error)
            raise
    this.ahead = END
    this.index += 1
    run._state.give(batch if run._state.on_cpu else to_device(batch, run.device))
    return True


def look_ahead(run: Run, this: Pass) -> None:
    """Reads one batch more than is played, to know whether there is one."""
    index, batch = this.index, run._state.batch
    if isinstance(this.feed, Feed):
        this.feed.bookmark()
    if take(run, this):
        this.ahead = run._state.batch
    this.index = index
    run._state.give(batch)


def begin_iteration(run: Run, this: Pass) -> None:
    score = this.score
    this.iterating = True
    if score.plays_iter:
        if score.before_iter:
            fire(run, _BEFORE_ITER, score.before_iter)
        if score.around_iter:
            enter(run, _AROUND_ITER, score.around_iter, this.iter_exits)
        if score.before_stage_iter:
            fire(run, score.at_before_iter, score.before_stage_iter)
        if score.around_stage_iter:
            enter(run, score.at_around_iter, score.around_stage_iter, this.stage_iter_exits)
    run._state.reach(score.at_before_iter)
    if this.without_rate:
        this.without_rate = [optimizer for optimizer in this.without_rate if has_no_rate(optimizer)]
    if run._state.processes.many:
        begin_round(run, this)
    if run._state.asked & SKIP_BATCH:
        run._state.set_skipped(actions_from(this.stage, "forward"))


def begin_round(run: Run, this: Pass) -> None:
    """The processes that train together agree whether this batch is skipped."""
    run._state.ask(run._state.processes.begin_round(run, this))


def end_iteration(run: Run, this: Pass) -> bool:
    """Counts the batch, plays the ends of its spans, deletes its fields; False if no further batch is wanted."""
    state, score, processes = run._state, this.score, run._state.processes
    if processes.many:
        boundaries.decide(run, this)
    if state.held and this.training and not state.asked & STOP and is_last(run, this):
        release(run, this)
    count = score.count
    samples, tokens = count_samples(state.batch) if count is None else count(run)
    processes.count(run, this, samples, tokens)
    loss = state.loss
    if loss is not GONE:  # as it is if the batch was skipped, or in a prediction
        if score.plays_forward_or_loss is not None and state.forwarded != this.index:
            refuse_loss_by_hand(run, score.plays_forward_or_loss)
        this.mean.add(loss, samples)
    if score.plays_iter:
        end_with_others(run, this)
    row = state.rows["iter"]
    if row is not None:
        this.logged.add(row.raw(), samples)
        run._write_row("iter")
    this.iterating = False
    if run.loss_weight is not UNWEIGHTED:
        run.loss_weight = UNWEIGHTED
    state.end_iteration()
    if state.asked or run.clock.steps >= state.last_step:
        return boundaries.between_iterations(run, this)
    return True


def refuse_loss_by_hand(run: Run, who: str) -> None:
    """The caller set ``run.loss`` without the verb, which would pass over those who play in forward and loss."""
    if not run._state.asked & SKIP_BATCH:
        raise RuntimeError(
            f"run.loss was set by hand, so the forward and loss points that {who} plays would be passed over; use "
            "run.forward(compute) with a function that sets run.output and run.loss"
        )


def end_with_others(run: Run, this: Pass) -> None:
    score = this.score
    if this.stage_iter_exits:
        leave(run, score.at_around_iter, this.stage_iter_exits, None)
    if score.after_stage_iter:
        fire(run, score.at_after_iter, score.after_stage_iter)
    if this.iter_exits:
        leave(run, _AROUND_ITER, this.iter_exits, None)
    if score.after_iter:
        fire(run, _AFTER_ITER, score.after_iter)
    if run._state.held and this.training and run._state.asked & END_EPOCH and not run._state.asked & STOP:
        release(run, this)  # the end of the epoch was asked for only now


def is_last(run: Run, this: Pass) -> bool:
    """Whether no further batch follows. Looks one batch ahead if the loader cannot tell its length."""
    if run._state.asked & END_EPOCH or run.clock.steps >= run._state.last_step:
        return True
    known = run._state.processes.is_last(this)
    if known is not None:
        return known
    if this.is_at_end():
        return True
    if this.ahead is END and length_of(this.feed) is None:
        look_ahead(run, this)
    return this.exhausted


def release(run: Run, this: Pass) -> None:
    """Steps on gradients that were held, since the epoch ends here; unless they are carried into the next one."""
    if run.carries_gradients:
        return
    state = run._state
    aside = state.asked & ~(SKIP_STEP | SKIP_ZERO_GRAD)  # what skips this batch does not skip the gradients of others
    state.drop(aside)
    state.hold(False)
    state.set_skipped(state.skipped - {"step", "zero_grad"})
    this.score.verbs.step(run)
    state.ask(aside & ~HOLD_STEP)
