"""The state of the loop: one object with fixed fields, each of which this module alone assigns."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.clock import Cadence
    from cadenza.engine.dispatch import Exits
    from cadenza.engine.processes import Processes
    from cadenza.engine.resuming import FreshStart
    from cadenza.engine.stack import Epoch, Frame, Outside, Pass, Verbs
    from cadenza.history import Row
    from cadenza.plan import Plan
    from cadenza.points import Point
    from cadenza.run import Run

NOTHING: frozenset[str] = frozenset()
UNWEIGHTED = 1.0
"""The weight of a loss that no callback weighs. It is compared by identity: comparing a tensor would wait for its
device."""


class _Gone:
    """The value of a field whose life has ended, or has not begun."""

    def __repr__(self) -> str:
        return "GONE"


GONE: Any = _Gone()


# Values that a later step overwrites: they are copied when read, and otherwise never ----------------------------------


class Later:
    """An output."""

    __slots__ = ("copy",)

    def __init__(self, copy: Callable[[], Any]) -> None:
        self.copy = copy


class Page:
    """Losses of a few steps. Its places are those that steps write into, and a copy of them when others need these."""

    __slots__ = ("places",)

    def __init__(self, places: Sequence[Tensor]) -> None:
        self.places = places


class OnPage:
    """The loss of one step, on its page."""

    __slots__ = ("number", "page")

    def __init__(self, page: Page, number: int) -> None:
        self.page, self.number = page, number

    def look(self) -> Tensor:
        """The loss where it stands now, to be used at once."""
        return self.page.places[self.number]

    def copy(self) -> Tensor:
        return self.look().clone()


# The table ------------------------------------------------------------------------------------------------------------


class State:
    """The state of the loop of one run.

    ``engine/``, ``execution/``, ``run.py`` and ``plan.py`` read its fields, and change them by its methods; everyone
    else uses the public fields and methods of the run.
    """

    __slots__ = (
        "asked",
        "at",
        "batch",
        "began",
        "begun",
        "blamed",
        "cadences",
        "caller",
        "committed",
        "current",
        "ended",
        "ending",
        "epoch_frame",
        "exchange",
        "executor",
        "exits",
        "failing",
        "feed_states",
        "feeds",
        "first_results",
        "first_row",
        "forwarded",
        "frames",
        "had_held",
        "held",
        "idle",
        "in_backward",
        "last_loss",
        "last_output",
        "last_step",
        "loss",
        "make_plan",
        "on_cpu",
        "output",
        "outside",
        "owed",
        "plan",
        "processes",
        "recomputing",
        "removed",
        "resume",
        "rows",
        "skipped",
        "stepped_itself",
        "thread",
        "told_of_rate",
        "verbs",
    )

    def __init__(
        self, *, make_plan: Callable[[Run], Plan], processes: Processes, resume: FreshStart, outside: Outside,
        verbs: Verbs, on_cpu: bool,
    ) -> None:  # fmt: skip
        # What the run works with
        self.make_plan = make_plan
        self.plan: Plan
        self.executor: Any = None
        self.processes = processes
        self.resume = resume
        self.on_cpu = on_cpu
        self.thread = threading.get_ident()
        # From the beginning of the run to its end
        self.began = (0, 0)
        self.last_step = sys.maxsize
        self.begun = self.ending = self.ended = False
        self.exits: Exits = []
        self.removed: list[Callback] = []
        self.committed: list[str] = []
        self.cadences: dict[str, Cadence] = {}
        self.feeds: dict[str, tuple[Any, Any]] = {}
        self.feed_states: dict[str, Any] = {}
        self.rows: dict[str, Row | None] = {"iter": None, "pass": None, "epoch": None}
        self.idle = 0
        self.told_of_rate = False
        # Which point ran last, what was asked, and what failed
        self.at: Point | None = None
        self.caller: Callback | None = None
        self.asked = 0
        self.exchange: Callable[[Run], None]
        self.blamed: BaseException | None = None
        self.failing: BaseException | None = None
        self.owed: BaseException | None = None
        # The epoch, and the pass that is open
        self.frames: list[Frame] = []
        self.epoch_frame: Epoch
        self.first_row = 0
        self.outside = outside
        self.current: Pass | Outside = outside
        self.verbs = verbs
        # The iteration
        self.batch: Any = GONE
        self.output: Any = GONE
        self.loss: Any = GONE
        self.last_loss: Any = None
        self.last_output: Any = None
        self.skipped = NOTHING
        self.forwarded = -1
        self.held = self.had_held = False
        self.in_backward = self.stepped_itself = self.recomputing = False
        self.first_results: tuple[Any, Any] | None = None

    # The run --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.begun = True

    def begin_last_save(self) -> None:
        """``after_run`` was called: a save from here on is the last one."""
        self.ending = True

    def end(self) -> None:
        self.ended = True

    def limit(self, began: tuple[int, int], last_step: int | None) -> None:
        """The epochs and steps at which the fit began, and the step at which it ends."""
        self.began, self.last_step = began, sys.maxsize if last_step is None else last_step

    def follow_plan(self, plan: Plan) -> None:
        self.plan = plan

    def executor_made_by(self, make: Callable[[], Any]) -> Any:
        """The executor of the run, which all of its plans share."""
        if self.executor is None:
            self.executor = make()
        return self.executor

    def join(self, processes: Processes) -> None:
        self.processes = processes

    def resume_from(self, resume: FreshStart) -> None:
        self.resume = resume

    def count_idle(self, batches: int | None) -> None:
        """Adds ``batches`` without a step; None if there was one."""
        self.idle = 0 if batches is None else self.idle + batches

    def tell_of_rate(self) -> None:
        """The user was warned of a learning rate of 0."""
        self.told_of_rate = True

    # Points, requests and failures ----------------------------------------------------------------------------------

    def reach(self, point: Point | None) -> None:
        """``point`` is the one that runs now, or ran last."""
        self.at = point

    def call_from(self, callback: Callback | None) -> None:
        """``callback`` is the one whose requests are to be agreed on."""
        self.caller = callback

    def ask(self, requests: int) -> None:
        self.asked |= requests

    def drop(self, requests: int) -> None:
        self.asked &= ~requests

    def exchange_by(self, function: Callable[[Run], None]) -> None:
        """``function`` is called between this iteration and the next."""
        self.exchange = function

    def blame(self, error: BaseException) -> None:
        """``error`` has a note that says who raised it."""
        self.blamed = error

    def fail(self, error: BaseException) -> None:
        """``error`` is on its way out of the loop."""
        self.failing = error

    def owe(self, error: BaseException | None) -> None:
        """The next verb raises ``error``, which could not be raised where it occurred."""
        self.owed = error

    # Epochs and passes ----------------------------------------------------------------------------------------------

    def open_epoch(self, epoch: Epoch, first_row: int) -> None:
        self.frames.append(epoch)
        self.epoch_frame, self.first_row = epoch, first_row

    def reopen_epoch(self, first_row: int) -> None:
        """The rows of the epoch begin with one that was written before the run was interrupted."""
        self.first_row = first_row

    def open_pass(self, this: Pass) -> None:
        self.frames.append(this)
        self.current, self.verbs, self.forwarded = this, this.score.verbs, -1

    def set_current(self, this: Pass | Outside) -> None:
        self.current = this

    def use_verbs(self, verbs: Verbs) -> None:
        self.verbs = verbs

    def of_pass(self) -> tuple[Any, ...]:
        """What a nested pass changes and ``restore_pass`` restores."""
        return self.at, self.forwarded, self.current, self.skipped

    def restore_pass(self, kept: tuple[Any, ...]) -> None:
        self.at, self.forwarded, self.current, self.skipped = kept

    # An iteration ---------------------------------------------------------------------------------------------------

    def give(self, batch: Any) -> None:
        self.batch = batch

    def set_output(self, output: Any) -> None:
        self.output = output

    def set_loss(self, loss: Any) -> None:
        self.loss = loss

    def set_results(self, output: Any, loss: Any) -> None:
        self.output, self.loss = output, loss

    def fields(self) -> tuple[Any, Any, Any]:
        return self.batch, self.output, self.loss

    def set_fields(self, fields: tuple[Any, Any, Any] = (GONE, GONE, GONE)) -> None:
        self.batch, self.output, self.loss = fields

    def forget(self) -> None:
        """Ends the life of the fields. Loss and output are freed when the next ones exist, which is cheaper than before
        the next forward, and is when a hand-written loop frees them."""
        self.last_loss, self.last_output = self.loss, self.output
        self.batch = self.output = self.loss = GONE

    def let_go(self) -> None:
        """Frees loss and output of the iteration before."""
        self.last_loss = self.last_output = None

    def end_iteration(self) -> None:
        """The fields of the iteration end their life, and what was skipped is forgotten."""
        self.last_loss, self.last_output = self.loss, self.output
        self.batch = self.output = self.loss = GONE
        self.skipped, self.failing = NOTHING, None

    def skip(self, actions: frozenset[str] | set[str]) -> None:
        self.skipped |= actions

    def set_skipped(self, actions: frozenset[str]) -> None:
        self.skipped = actions

    # A step ---------------------------------------------------------------------------------------------------------

    def begin_forward(self) -> None:
        """The verb ``forward`` computes this batch; a loss of an earlier forward of it does not count."""
        self.forwarded, self.loss = self.current.index, GONE

    def mark_forwarded(self) -> None:
        self.forwarded = self.current.index

    def set_in_backward(self, inside: bool) -> None:
        """Whether a backward of the user's own runs, which may step the optimizer itself."""
        self.in_backward = inside

    def set_stepped_itself(self, stepped: bool) -> None:
        """Whether the user's own backward has made the step."""
        self.stepped_itself = stepped

    def hold(self, held: bool) -> None:
        """Whether gradients wait for the step of a later batch."""
        self.held = held

    def begin_step(self) -> None:
        self.had_held, self.held = self.held, False

    def leave_recorded_step(self, *, held: bool, skipped: frozenset[str]) -> None:
        """What a step that was recorded leaves when it runs again."""
        self.held, self.had_held, self.skipped = held, False, skipped
        self.forwarded = self.current.index

    def of_step(self) -> tuple[Any, ...]:
        """What a step changes here and ``restore_step`` restores."""
        of_step = (self.asked, self.held, self.had_held, self.skipped, self.forwarded, self.at, self.first_results)
        return (self.fields(), *of_step)

    def restore_step(self, kept: tuple[Any, ...]) -> None:
        fields, self.asked, self.held, self.had_held, self.skipped, self.forwarded, self.at, self.first_results = kept
        self.set_fields(fields)

    def begin_recompute(self) -> None:
        self.recomputing = True
        self.first_results = self.first_results or (self.loss, self.output)

    def end_recompute(self, at: Point | None) -> None:
        self.recomputing, self.at = False, at

    def restore_first_results(self) -> None:
        """After a batch was computed again inside a step, its first loss and output are the ones that count."""
        if self.first_results is not None:
            (self.loss, self.output), self.first_results = self.first_results, None
