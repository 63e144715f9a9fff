"""A checkpoint as far as these tests need one: the clock, the history and the state of callbacks."""

from __future__ import annotations

from typing import Any

from cadenza import Callback


class Restore(Callback):
    """Brings a new trainer to where an earlier one was, as a checkpoint does: state first, then ``after_load``."""

    order = -2_000_000
    """Before the experiment."""

    def __init__(self, saved: dict[str, Any], *listeners: Callback) -> None:
        self.saved, self.listeners = saved, listeners

    def before_run(self, run: Any) -> None:
        run.clock.load_state_dict(self.saved["clock"])
        run.history.load_state_dict(self.saved["history"])
        run.epoch = run.clock.epochs
        run.num_epochs += run.clock.epochs
        for listener in self.listeners:
            listener.load_state_dict(self.saved[type(listener).__name__])
            listener.after_load(run)


class Save(Callback):
    """Keeps the state of callbacks after one epoch, at the safe point at which checkpoints are made."""

    owns = {"save"}

    def __init__(self, into: dict[str, Any], *callbacks: Callback, after: int = 0) -> None:
        self.into, self.callbacks, self.after = into, callbacks, after

    def after_epoch(self, run: Any) -> None:
        if run.epoch == self.after:
            run.save()

    def save(self, run: Any) -> None:
        for callback in self.callbacks:
            callback.before_save(run)
            self.into[type(callback).__name__] = callback.state_dict()
        self.into.update(clock=run.clock.state_dict(), history=run.history.state_dict())
