"""Requests as bits of one number, so that a run in which nobody asks looks at a single zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cadenza.points import REQUESTS, SPAN

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.engine.state import State

BIT: dict[str, int] = {name: 1 << position for position, name in enumerate(REQUESTS)}

SKIP_BATCH = BIT["skip_batch"]
SKIP_BACKWARD = BIT["skip_backward"]
SKIP_STEP = BIT["skip_step"]
HOLD_STEP = BIT["hold_step"]
SKIP_ZERO_GRAD = BIT["skip_zero_grad"]
END_EPOCH = BIT["end_epoch"]
SKIP_VALIDATION = BIT["skip_validation"]
SAVE = BIT["save"]
STOP = BIT["stop"]
REPLAN = 1 << len(BIT)
"""Not a request of the table: a callback was added to or removed from a running trainer."""
EXCHANGE = REPLAN << 1
"""Nor is this: ``run._state.exchange`` is to be called between this iteration and the next, to play another plan."""
SAVED = EXCHANGE << 1
"""Nor this: checkpoints were committed, which ``after_save`` tells at the next safe point."""

PAUSED = "paused: "
"""A stop whose reason begins so is no end: a resume goes on, whatever its limits."""

OF_ITERATION = sum(BIT[name] for name, request in REQUESTS.items() if request.scope == "iter")
OF_PASS = END_EPOCH

ACTIONS: dict[str, tuple[str, ...]] = {
    stage: SPAN[f"{stage}_iter"].inside for stage in ("train", "val", "test", "pred")
}


def actions_from(stage: str, action: str) -> frozenset[str]:
    """``action`` and all that would have followed it in an iteration of ``stage``."""
    actions = ACTIONS[stage]
    return frozenset(actions[actions.index(action) :])


def declared_skips(callbacks: Sequence[Callback]) -> int:
    """The skips that some callback, on whichever rank it plays, may ask for without all ranks asking alike."""
    names = {name for callback in callbacks if callback.agree != "same" for name in callback.asks}
    return sum(BIT[name] for name in names) & OF_ITERATION


def grant(run: Requests, requests: Iterable[tuple[str, str | None]]) -> None:
    """These requests are decided: from here on they act."""
    for request, reason in requests:
        if request == "stop" and run.stop_reason is None:
            run.stop_reason = reason
        run._state.ask(BIT[request])


class Requests:
    """What callbacks may ask. A request is recorded, the other players of the point still play, then the loop acts."""

    mode: str
    stage: str | None
    stop_reason: str | None
    _state: State

    def skip_batch(self) -> None:
        """Enter no further action of this iteration. The batch counts as seen."""
        self._ask("skip_batch")

    def skip_backward(self) -> None:
        """Enter neither backward, nor step, nor zero_grad in this iteration."""
        self._ask("skip_backward")

    def skip_step(self) -> None:
        """Make no step; zero_grad is played, so the gradients are dropped."""
        self._ask("skip_step")

    def hold_step(self) -> None:
        """Keep the gradients for the next batch; they are stepped at the latest when the epoch ends."""
        self._ask("hold_step")

    def skip_zero_grad(self) -> None:
        """Let the gradients stay after the step."""
        self._ask("skip_zero_grad")

    def end_epoch(self) -> None:
        """Finish this iteration and fetch no further batch in this pass; validation follows."""
        self._ask("end_epoch")

    def skip_validation(self) -> None:
        """Do not validate in this epoch."""
        self._ask("skip_validation")

    def save(self) -> None:
        """Write a checkpoint at the next safe point."""
        if not self.can_save:
            raise RuntimeError("run.save() has nobody to save: add a callback that owns 'save', such as Checkpoint")
        self._ask("save")

    def stop(self, reason: str = "") -> None:
        """Finish this iteration and end the run, in order."""
        why = reason or f"asked at {self._state.at.name if self._state.at else 'the start'}"
        self._ask("stop", why)

    @property
    def can_save(self) -> bool:
        """Whether somebody serves ``run.save()``."""
        raise NotImplementedError  # pragma: no cover

    def _ask(self, request: str, reason: str | None = None) -> None:
        point, stage = self._state.at, self.stage
        if request != "stop" and point is not None:
            again = self._state.recomputing and BIT[request] & OF_ITERATION
            if (
                again
                or (self.mode != "fit" and request in ("save", "skip_validation"))
                or not point.takes(request, stage)
            ):
                raise RuntimeError(self._too_late(request, again=bool(again)))
        if self._state.processes.ask(self, request, reason):  # type: ignore[arg-type]
            grant(self, [(request, reason)])

    def is_asked(self, request: str) -> bool:
        """Whether ``request`` was asked, and decided on, and is not met yet."""
        return bool(self._state.asked & BIT[request])

    def _too_late(self, request: str, *, again: bool) -> str:
        if self.mode != "fit" and request in ("save", "skip_validation"):
            return f"run.{request}() is for fit; this run is in mode {self.mode!r}"
        told = REQUESTS[request]
        here = (
            f"{self._state.at.name if self._state.at else 'the start'} ({self.stage or 'between stages'}, {self.mode})"
        )
        if again:
            return f"run.{request}() cannot be met while a batch is played again inside a step; ask before that"
        stages = "" if len(told.stages) > 1 else f" of the {told.stages[0]} stage"
        return f"run.{request}() was asked at {here}, where it cannot be met: its last place is {told.last}{stages}"
