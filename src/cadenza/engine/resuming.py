"""Reads where a run is in its epoch, for a checkpoint, and brings a resumed run there again.

The engine asks a resume what to restore: ``FreshStart`` answers for a run that begins from the beginning, and
``cadenza.resume.restore.Resume`` is a saved state on its way into a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cadenza.data import Feed
from cadenza.engine.requests import BIT
from cadenza.engine.stack import Pass
from cadenza.history import Row

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.run import Run


class FreshStart:
    """Nothing is restored: no epoch was open, no pass was done.

    >>> FRESH_START.is_resuming, FRESH_START.position
    (False, None)
    """

    is_resuming = False
    """Whether a saved state is on its way into the run; no longer once the run is where it was saved."""
    position: dict[str, Any] | None = None
    """Where in the epoch the run was saved; None between two epochs."""

    def is_finished(self, run: Run) -> bool:
        """Whether nothing is left to train."""
        return False

    def load(self, run: Run, callbacks: Sequence[Callback]) -> None:
        """Restores everything but the place in the epoch, before ``before_run``."""

    def loaded(self, run: Run) -> None:
        """The run is open: its callbacks are told what was loaded."""

    def load_ended(self, run: Run, callbacks: Sequence[Callback]) -> None:
        """Restores a run that had ended, without opening it."""

    def reopen_epoch(self, run: Run) -> None:
        """The epoch that was open continues."""

    def skips(self, run: Run, stage: str, name: str | None) -> bool:
        """Whether this pass was done before the run was interrupted."""
        return False

    def reopen_pass(self, run: Run, this: Pass) -> None:
        """The training pass continues after the batches that were consumed."""

    def set_rng(self, run: Run) -> None:
        """Restores the random number generators."""

    def arrive(self, run: Run) -> None:
        """The run is where it was saved: undoes what callbacks did on the way, and ends the resuming."""

    def leave(self, run: Run) -> None:
        """The run ends without opening the epoch in which it was saved."""

    def release(self) -> None:
        """The run is open, or will not be."""


FRESH_START = FreshStart()


# Read ---------------------------------------------------------------------------------------------------------------


def limits_of(run: Run) -> dict[str, int | None]:
    """Where this fit began, and where it ends."""
    epochs, steps = run._state.began
    return {"epochs": epochs, "steps": steps, "until_epoch": run.num_epochs, "until": run.num_steps}


def cadences_of(run: Run) -> dict[str, int]:
    """How many multiples of each interval of ``run.cadence`` have passed."""
    return {interval: cadence.passed for interval, cadence in run._state.cadences.items()}


def row_of_epoch(run: Run) -> Row | None:
    """The row of the epoch, if something was logged into it."""
    return run._state.rows["epoch"]


def before_evaluation(run: Run) -> dict[str, Any] | None:
    """What was noted when the evaluation that is open began; None if none is open."""
    outermost = next((frame for frame in run._state.frames if isinstance(frame, Pass)), None)
    return None if outermost is None else outermost.beginning


def position_of(run: Run, row_values: Mapping[str, float] | None) -> dict[str, Any] | None:
    """Where in the epoch the run is; None between two epochs."""
    state = run._state
    if not state.frames:
        return None
    row = state.rows["epoch"]
    position: dict[str, Any] = {
        "trained": state.epoch_frame.trained,
        "done": [list(one) for one in state.epoch_frame.done],
        "first_row": state.first_row,
        "row": None if row is None else next(i for i, one in enumerate(run.history.rows) if one is row),
        "row_values": row_values,
        "pass": None,
    }
    this = state.frames[-1]
    if isinstance(this, Pass) and this.training:
        position["pass"] = {
            "consumed": this.index + 1,
            "mean": this.mean.state_dict(),
            "logged": this.logged.state_dict(),
            "held": state.held,
            **state.processes.counts_of(this),
        }
    return position


def feeds_of(run: Run) -> dict[str, Any]:
    """Where each loader is: that of the open training pass after so many batches, the others between two passes."""
    this = run._state.current
    states = dict(run._state.feed_states)
    for key, (_, feed) in run._state.feeds.items():
        if isinstance(feed, Feed):
            inside = isinstance(this, Pass) and this.feed is feed and this.training
            states[key] = feed.state_dict(_consumed(run, feed) if inside else None)
    return states


def _consumed(run: Run, feed: Feed) -> int:
    """The batches of the pass that this process had; it may have taken part in more rounds, without a batch."""
    this, rounds = run._state.current, run.batches_seen
    ended = isinstance(this, Pass) and this.exhausted and run.world_size > 1
    return min(rounds, getattr(feed, "inner", feed).read) if ended else rounds


def unresumable(run: Run) -> list[str]:
    """Why the open pass cannot be resumed from a save made now, and what to do; empty if it can."""
    this = run._state.current
    feed = this.feed if isinstance(this, Pass) and this.training else None
    reason = feed.why_not_resumable() if isinstance(feed, Feed) else None
    return [] if reason is None else [reason]


# Restored -------------------------------------------------------------------------------------------------------------


def resume_from(run: Run, resume: FreshStart) -> None:
    """The run begins where ``resume`` was saved."""
    run._state.resume_from(resume)


def arrived(run: Run, *, held: bool) -> None:
    """The run is where it was saved, so it resumes nothing any more. ``held``: whether gradients wait for a step."""
    run._state.resume_from(FRESH_START)
    run._state.hold(held)


def restore_progress(run: Run, feeds: Mapping[str, Any], cadences: Mapping[str, int]) -> None:
    """The loaders and the intervals of ``run.cadence`` continue where they were."""
    run._state.feed_states.clear()
    run._state.feed_states.update(feeds)
    for interval, passed in cadences.items():
        run.cadence(interval).passed = passed


def reopen_epoch(run: Run, position: Mapping[str, Any], done: Sequence[tuple[str, str | None]]) -> None:
    """The epoch that was open continues with its rows and with what was done in it."""
    state = run._state
    state.reopen_epoch(position["first_row"])
    state.epoch_frame.trained, state.epoch_frame.done = position["trained"], [*done]
    if position["row"] is not None:
        state.rows["epoch"] = run.history.rows[position["row"]]


def reopen_pass(run: Run, this: Pass, inside: Mapping[str, Any]) -> None:
    """The training pass continues after the batches that were consumed."""
    this.index = inside["consumed"] - 1
    this.mean.load_state_dict(inside["mean"], run.device)
    this.logged.load_state_dict(inside.get("logged", ()), run.device)  # a checkpoint of an earlier version has none
    run._state.processes.restore_counts(this, inside)


def ask_again(run: Run, request: str) -> None:
    """Something that was asked before the save is still to be done."""
    run._state.ask(BIT[request])


def drop_save(run: Run) -> None:
    """A save that was asked is not made."""
    run._state.drop(BIT["save"])


def renumber_batch(run: Run, index: int) -> None:
    """The open batch has another number in its pass: a replay begins in the middle of one."""
    run._state.current.index = index
