"""What is open on the stack of a run: the epoch, and the passes over loaders with the iteration open in each.

And the verbs: what ``run.train_step()`` and the others do at this moment: in a stage, between passes, or after a loop
was left by ``break``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from cadenza.data import length_of
from cadenza.engine.dispatch import Exits, leave
from cadenza.engine.requests import OF_ITERATION, OF_PASS
from cadenza.engine.running_mean import Logged, Mean
from cadenza.engine.state import GONE, NOTHING, UNWEIGHTED
from cadenza.foundation.module_modes import Flags, set_flags
from cadenza.points import POINTS

if TYPE_CHECKING:
    from cadenza.engine.dispatch import Player
    from cadenza.plan import StageScore
    from cadenza.run import Run

END: Any = object()
"""Stands for the batch that does not exist after the last one."""


# The verbs ------------------------------------------------------------------------------------------------------------


class Forward(Protocol):
    """The forward and loss spans; ``compute`` takes the place of the behaviour."""

    def __call__(self, run: Run, compute: Player | None = None) -> bool: ...


@dataclass(frozen=True)
class Verbs:
    """One function a verb. Those that return a bool say False when something was asked away."""

    train_step: Callable[[Run], bool]
    eval_step: Callable[[Run], bool]
    forward: Forward
    backward: Callable[[Run], bool]
    step: Callable[[Run], bool]
    recompute: Callable[[Run], Tensor]
    step_optimizer: Callable[[Run, Optimizer], None]


def each_verb(make: Callable[[str], Callable[..., Any]]) -> Verbs:
    """Verbs that all do the same: what ``make`` returns for their name."""
    return Verbs(**{field.name: make(field.name) for field in fields(Verbs)})


def _needs_a_batch(verb: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise RuntimeError(
            f"run.{verb}() needs a batch: call it inside `for batch in run.train(...)` or run.validate(...)"
        )

    return refuse


NO_VERBS: Verbs = each_verb(_needs_a_batch)
"""The verbs when no pass is open."""


# The stack ------------------------------------------------------------------------------------------------------------


class Frame:
    """A span, or a few nested ones, that is open on the run's stack."""

    abandoned = False
    closed = False

    def leave(self, run: Run, error: BaseException | None) -> None:
        """Leaves what is held around the spans, innermost first. Nothing happens the second time."""
        raise NotImplementedError  # pragma: no cover


class Epoch(Frame):
    """One epoch of ``fit``."""

    def __init__(self) -> None:
        self.exits: Exits = []
        self.trained = False
        self.done: list[tuple[str, str | None]] = []

    def leave(self, run: Run, error: BaseException | None) -> None:
        leave(run, POINTS["around_epoch"], self.exits, error)


class Pass(Frame):
    """One pass of a stage over a loader, and the iteration that is open in it."""

    def __init__(self, run: Run, stage: str, name: str | None) -> None:
        self.stage = stage
        self.training = stage == "train"
        self.name = name
        self.score: StageScore = run._state.plan.stages[stage]
        self.prefix = f"{stage}/{name}/" if name else f"{stage}/"
        self.exits: Exits = []
        self.iter_exits: Exits = []
        self.stage_iter_exits: Exits = []
        self.loader: Any = None
        self.feed: Any = None
        self.beginning: dict[str, Any] | None = None
        self.iterator: Iterator[Any] = iter(())
        self.ahead: Any = END
        self.exhausted = False
        self.index = -1
        self.iterating = False
        self.complete = False
        self.mean, self.logged = Mean(), Logged()
        self.rounds: int | None = None
        self.shared_rounds: int | None = None
        self.all_have = True
        """Whether each of many processes has a batch in this round."""
        self.last: Any = GONE
        self.donor: int | None = None
        self.samples_of_all: float | None = None
        self.seen, self.counted = [0, 0], [0, 0]
        self.outer = put_aside(run)
        self.flags: Flags = []
        self.without_rate = list(run.optimizers) if self.training else []
        """The optimizers whose learning rate was 0 in all iterations so far."""
        self.marked: tuple[int, list[int]] | None = None
        self.resumed = run._state.resume.is_resuming

    def leave(self, run: Run, error: BaseException | None) -> None:
        try:
            leave(run, self.score.at_around_iter, self.stage_iter_exits, error)
        finally:
            try:
                leave(run, POINTS["around_iter"], self.iter_exits, error)
            finally:
                try:
                    leave(run, self.score.at_around_epoch, self.exits, error)
                finally:
                    self.restore_flags()

    def is_at_end(self) -> bool:
        """Whether the loader is known to have no further batch."""
        length = length_of(self.feed) if self.rounds is None else self.rounds
        return self.exhausted or (length is not None and self.index + 1 >= length)

    def restore_flags(self) -> None:
        """Brings back each module's own train or eval flag; nothing happens the second time."""
        flags, self.flags = self.flags, []
        set_flags(flags)


class Outside:
    """What stands in the place of a pass when none is open."""

    iterating = False
    index = -1
    loader: Any = None
    rounds: int | None = None
    all_have = True
    samples_of_all: float | None = None

    def __init__(self) -> None:
        self.logged = Logged()


def put_aside(run: Run) -> dict[str, Any]:
    """Takes away what belongs to the outer iteration while a nested pass goes on."""
    state = run._state
    outer = {
        "fields": state.fields(),
        "asked": state.asked & (OF_ITERATION | OF_PASS),
        "row": state.rows["iter"],
        "pass": state.of_pass(),
        "own": (run.stage, run.loader_name, run.loss_weight),
    }
    state.set_fields()
    if state.current.iterating:
        state.drop(OF_ITERATION | OF_PASS)
    state.rows["iter"], run.loss_weight = None, UNWEIGHTED
    state.set_skipped(NOTHING)
    return outer


def take_back(run: Run, outer: dict[str, Any]) -> None:
    state = run._state
    state.set_fields(outer["fields"])
    state.drop(OF_ITERATION | OF_PASS)
    state.rows["iter"] = outer["row"]
    run.stage, run.loader_name, run.loss_weight = outer["own"]
    state.restore_pass(outer["pass"])
    state.use_verbs(verbs_of(run))
    if state.current.iterating:
        state.ask(outer["asked"])


def verbs_of(run: Run) -> Verbs:
    """What the verbs do in the pass that is open; a new plan may have been made since it began."""
    return run._state.current.score.verbs if isinstance(run._state.current, Pass) else NO_VERBS
