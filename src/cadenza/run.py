"""What a callback sees and asks, and the verbs in which a loop is written."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cadenza import passes, quiet
from cadenza.clock import Clock
from cadenza.history import History, Metrics, Row, unknown_metric
from cadenza.passes import Epoch, Frame, Outside, Pass
from cadenza.points import MODES, POINTS, Point
from cadenza.requests import END_EPOCH, OF_ITERATION, OF_PASS, REPLAN, SAVE, SKIP_VALIDATION, STOP, Requests
from cadenza.spans import Exits, enter, fire, leave, note, whereabouts

if TYPE_CHECKING:
    from cadenza.callback import Callback, MainCallback
    from cadenza.plan import Plan

log = logging.getLogger("cadenza")


@dataclass(frozen=True)
class Best:
    """The best value of the watched metric so far, and when it was reached."""

    name: str
    value: float
    epoch: int
    step: int


@dataclass
class Training:
    """What a trainer keeps from one run to the next."""

    module: nn.Module
    optimizers: list[Optimizer]
    criterion: Callable[..., Any] | None
    schedulers: list[Any]
    device: torch.device
    experiment: Any = None
    clock: Clock = field(default_factory=Clock)
    history: History = field(default_factory=History)
    best: Best | None = None
    store: dict[str, Any] = field(default_factory=dict)
    launched: bool = False


class Run(Requests):
    """One fit, validate, test or predict: handed to every callback at every point."""

    def __init__(self, training: Training, make_plan: Callable[[Run], Plan], mode: str = "fit", **limits: Any) -> None:
        self.training_state = training
        self.module = training.module
        self.model: Callable[..., Any] = training.module
        self.optimizers = training.optimizers
        self.schedulers = training.schedulers
        self.criterion = training.criterion
        self.device = training.device
        self.experiment = training.experiment
        self.clock = training.clock
        self.history = training.history if mode == "fit" else History()
        self.store = training.store
        self.metrics = Metrics()
        self.rank, self.local_rank, self.world_size = 0, 0, 1
        self.mode = mode
        self.stage: str | None = None
        self.loader_name: str | None = None
        self.epoch = self.clock.epochs
        self.num_epochs: int | None = None
        self.train_loader: Any = None
        self.val_loader: Any = None
        self.error: BaseException | None = None
        self.row: Row | None = None
        self.loss_weight = 1.0
        self.scaler: Any = None
        self.stop_reason: str | None = None
        self._make_plan = make_plan
        self._plan: Plan
        self._at: Point | None = None
        self._asked = 0
        self._replaying = False
        self._held = False
        self._in_backward = False
        self._stepped_itself = False
        self._withheld = False
        self._first: tuple[Any, Any] | None = None
        self._forwarded = False
        self._open: list[Frame] = []
        self._epoch: Epoch
        self._outside = Outside()
        self._pass: Pass | Outside = self._outside
        self._exits: Exits = []
        self._row_of_epoch: Row | None = None
        self._row_of_iteration: Row | None = None
        self._row_of_pass: Row | None = None
        self._blamed: BaseException | None = None
        self._failing: BaseException | None = None
        self._last_loss: Any = None
        self._last_step: float = float("inf")
        self._on_cpu = self.device.type == "cpu"
        self._thread = threading.get_ident()
        self._begun = False
        self._ended = False
        self.limit(**limits)

    # What a callback reads ------------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> Optimizer:
        """The first optimizer."""
        return self.optimizers[0]

    @property
    def scheduler(self) -> Any:
        """The first scheduler, or None."""
        return self.schedulers[0] if self.schedulers else None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def training(self) -> bool:
        """Whether the training stage plays."""
        return self.stage == "train"

    @property
    def best(self) -> Best | None:
        return self.training_state.best

    @property
    def is_open(self) -> bool:
        """Whether this run has begun and not ended yet."""
        return self._begun and not self._ended

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """All callbacks of this run in the order in which they play."""
        return self._plan.callbacks

    @property
    def main(self) -> MainCallback:
        """The callback that owns the behaviours."""
        return self._plan.main

    # What a callback does -------------------------------------------------------------------------------------------

    def log(self, name: str, value: float | Tensor, *, over_ranks: str | None = None) -> None:
        """Writes one value into this iteration's row, or outside an iteration into the epoch's.

        A tensor stays on its device until somebody reads it. Under many processes it is rank 0's value,
        unless ``over_ranks="mean"``.
        """
        if over_ranks not in (None, "mean"):
            raise ValueError(f'over_ranks is None or "mean", not {over_ranks!r}')
        self.metrics[name] = value
        self._current_row()[name] = self.metrics.raw()[name]

    def predict(self, loader: Iterable[Any]) -> Any:
        """The outputs for ``loader``, in order, on the CPU. Plays no points; fields, modes and RNG are as before."""
        return quiet.predict(self, loader)

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """The mean loss over ``loader`` as ``{"loss": …}``. Plays no points; fields, modes and RNG are as before."""
        return quiet.evaluate(self, loader)

    def again(self) -> Tensor:
        """Plays zero_grad, forward, loss and backward of this batch once more; for use inside a step."""
        return self._pass.verbs.again(self)

    def step_optimizer(self, optimizer: Optimizer) -> None:
        """Steps one optimizer as this run needs it: through the fp16 scaler, with a closure where it wants one."""
        self._pass.verbs.step_optimizer(self, optimizer)

    # The verbs ------------------------------------------------------------------------------------------------------

    def limit(self, epochs: int | None = None, steps: int | None = None) -> None:
        """Sets how much further this fit goes."""
        for name, amount in (("epochs", epochs), ("steps", steps)):
            if amount is not None and (not isinstance(amount, int) or isinstance(amount, bool) or amount < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, not {amount!r}")
        if epochs is not None and steps is not None:
            raise ValueError("give epochs or steps, not both")
        self.num_epochs = None if epochs is None else self.clock.epochs + epochs
        self._last_step = float("inf") if steps is None else self.clock.steps + steps

    def epochs(self) -> Iterator[int]:
        """The epochs of this fit."""
        self._may_open("epoch")
        if self.num_epochs is None and self._last_step == float("inf"):
            raise ValueError("say how far to train: trainer.run(epochs=…) or trainer.run(steps=…)")
        return passes.epochs(self)

    def train(self, loader: Iterable[Any] | None = None) -> Iterator[Any]:
        """Training batches; the body of the loop is the inside of the iteration."""
        return passes.go_over(self, "train", loader, None)

    def validate(self, loader: Iterable[Any] | None = None, name: str | None = None) -> Iterator[Any]:
        """Validation batches. Modules are in eval mode until the loop ends, and then as they were."""
        return passes.go_over(self, "val", loader, name)

    def test(self, loader: Iterable[Any], name: str | None = None) -> Iterator[Any]:
        """Test batches."""
        return passes.go_over(self, "test", loader, name)

    def predicting(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Batches to predict; ``run.output`` is there after ``run.eval_step()``."""
        return passes.go_over(self, "pred", loader, None)

    def train_step(self) -> bool:
        """One whole training iteration: forward, loss, backward, step, zero_grad. False if part was asked away."""
        try:
            return self._pass.verbs.train_step(self)
        except BaseException as error:
            self._fail_in("train_step", error)
            raise

    def eval_step(self) -> bool:
        """One whole iteration of validation, test or prediction, without gradients."""
        try:
            return self._pass.verbs.eval_step(self)
        except BaseException as error:
            self._fail_in("eval_step", error)
            raise

    def forward(self, compute: Callable[[Run], Any] | None = None) -> bool:
        """The forward and loss spans; ``compute`` takes the place of the behaviour for this call."""
        try:
            return self._pass.verbs.forward(self, compute)
        except BaseException as error:
            self._fail_in("forward", error)
            raise

    def backward(self) -> bool:
        """The backward span."""
        try:
            return self._pass.verbs.backward(self)
        except BaseException as error:
            self._fail_in("backward", error)
            raise

    def step(self) -> bool:
        """The step and zero_grad spans."""
        try:
            return self._pass.verbs.step(self)
        except BaseException as error:
            self._fail_in("step", error)
            raise

    # Beginning and end ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._begun:
            raise RuntimeError("a run is used once; ask the trainer for another")
        self._begun = True
        self._plan = self._make_plan(self)
        self._plan.claim(self)
        try:
            self._begin()
        except BaseException as error:
            self._fail(error)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._fail(error)
            return
        try:
            self._finish()
        except BaseException as late:
            self._fail(late)
            raise

    def _begin(self) -> None:
        plan, training = self._plan, self.training_state
        self.module.to(self.device)
        if self.mode == "fit":
            self._clear_gradients()
            self.clock.start()
        plan.begin(self)
        for callback in plan.callbacks:
            fire(self, POINTS["after_register"], plan.own(callback, "after_register"))
        if not training.launched:
            training.launched = True
            fire(self, POINTS["after_launch"], plan.after_launch)
        fire(self, POINTS["before_run"], plan.before_run)
        enter(self, POINTS["around_run"], plan.around_run, self._exits)
        plan.check(self)

    def _finish(self) -> None:
        for frame in self._open:
            frame.abandoned = True
        passes.settle(self)
        leave(self, POINTS["around_run"], self._exits, None)
        if self.mode != "fit":
            self._write_row("epoch")
        fire(self, POINTS["after_run"], self._plan.after_run)
        if self._asked & SAVE:
            self._serve_save()
        self._warn_of_unseen_watch()
        self._close(None)

    def _fail(self, error: BaseException) -> None:
        """Ends everything after an exception: leaves all that is held, tells the callbacks, closes them."""
        if self.error is not None:
            return
        self.error = error
        if self._blamed is not error and (where := whereabouts(self)):
            error.add_note(f"cadenza: the run failed{where}")
        for frame in reversed(self._open):
            self._note_errors(error, lambda frame=frame: frame.leave(self, error))
        self._note_errors(error, lambda: leave(self, POINTS["around_run"], self._exits, error))
        for player in self._plan.after_error:
            self._note_errors(error, lambda player=player: fire(self, POINTS["after_error"], (player,)))
        self._open.clear()
        self._forget()
        self.stage, self._pass = None, self._outside
        self._close(error)

    def _note_errors(self, error: BaseException, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as further:
            if further is not error:
                notes = "; ".join(getattr(further, "__notes__", []))
                error.add_note(f"cadenza: then {type(further).__name__}: {further}{f' ({notes})' if notes else ''}")

    def _close(self, error: BaseException | None) -> None:
        """Closes every callback, whatever the others do; the first error of an orderly end is raised."""
        self._ended = True
        if self.mode == "fit":
            self.clock.pause()
        first: BaseException | None = None
        for callback in self._plan.callbacks:
            try:
                callback.close()
            except BaseException as late:
                late.add_note(f"cadenza: raised in {callback.name}.close")
                if error is not None:
                    self._note_errors(error, _raiser(late))
                first = first or late
        self._plan.release(self)
        if error is None and first is not None:
            self.error = first
            raise first

    def _clear_gradients(self) -> None:
        """Gradients that an aborted fit left behind would change the first step of this one."""
        for parameter in self.module.parameters():
            parameter.grad = None
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    # What the passes ask of the run -------------------------------------------------------------------------------

    def _may_open(self, what: str) -> None:
        """Refuses a loop that cannot be opened here."""
        if not self._begun or self.error is not None:
            raise RuntimeError("the verbs of a run work inside `with trainer.run(...) as run`")
        if threading.get_ident() != self._thread:
            raise RuntimeError("a run belongs to the thread that began it; its verbs cannot be used from another")
        if what == "epoch":
            if self.mode != "fit" or any(isinstance(frame, Epoch) for frame in self._open):
                raise RuntimeError("run.epochs() is for fit, once at a time")
            return
        if what not in MODES[self.mode]:
            raise RuntimeError(f"a run in mode {self.mode!r} has no {what} stage")
        if any(isinstance(frame, Pass) and frame.stage == what for frame in self._open):
            raise RuntimeError(f"a {what} pass is already open; the same stage cannot be played inside itself")
        if what == "train" and not (self._open and isinstance(self._open[-1], Epoch)):
            raise RuntimeError("run.train() belongs inside `for _ in run.epochs()`")

    def _loader_for(self, stage: str) -> Any:
        loader = self.train_loader if stage == "train" else self.val_loader
        if loader is None:
            raise ValueError(f"there is no {stage} loader: give one to the verb or to fit")
        return loader

    def _put_aside(self) -> dict[str, Any]:
        """Takes away what belongs to the outer iteration while a nested pass runs."""
        outer = {
            "fields": self._put_aside_fields(),
            "asked": self._asked & (OF_ITERATION | OF_PASS),
            "own": {name: getattr(self, name) for name in _OF_PASS},
        }
        if self._pass.iterating:
            self._asked &= ~(OF_ITERATION | OF_PASS)
        self._row_of_iteration = None
        return outer

    def _take_back(self, outer: dict[str, Any]) -> None:
        self._bring_back_fields(outer["fields"])
        self._asked &= ~(OF_ITERATION | OF_PASS)
        for name, value in outer["own"].items():
            setattr(self, name, value)
        if self._pass.iterating:
            self._asked |= outer["asked"]

    def _next_epoch(self) -> bool:
        self.epoch = self.clock.epochs
        if self._asked & STOP or self.clock.steps >= self._last_step:
            return False
        return self.num_epochs is None or self.clock.epochs < self.num_epochs

    def _boundary(self, this: Pass) -> bool:
        """Between two iterations, when something was asked: save, then the end of the epoch, then stop."""
        asked = self._asked
        self._asked = asked & ~OF_ITERATION
        if asked & REPLAN:
            self._replan()
        if this.stage != "train":
            return not asked & (END_EPOCH | STOP)
        if asked & SAVE:
            self._serve_save()
        if self.clock.steps >= self._last_step:
            this.complete = this.is_at_end()
            return False
        return not asked & (END_EPOCH | STOP)

    def _end_of_epoch(self) -> None:
        asked = self._asked
        self._asked = asked & ~SKIP_VALIDATION
        if asked & REPLAN:
            self._replan()
        if asked & SAVE:
            self._serve_save()

    def _replan(self) -> None:
        """Callbacks were added or removed: works out anew who plays, between two iterations."""
        self._asked &= ~REPLAN
        old, self._plan = self._plan, self._make_plan(self)
        old.release(self)
        self._plan.claim(self)
        self._plan.begin(self)
        for frame in self._open:
            if isinstance(frame, Pass):
                frame.score = self._plan.stages[frame.stage]
                frame.verbs = frame.score.verbs
        for callback in self._plan.callbacks:
            if callback not in old.callbacks:
                fire(self, POINTS["after_register"], self._plan.own(callback, "after_register"))

    def _can_save(self) -> bool:
        return self._plan.saver is not None

    def _serve_save(self) -> None:
        self._asked &= ~SAVE
        if self._plan.saver is not None:
            self._plan.saver(self)

    def _check_best(self) -> None:
        """Compares the watched metric with the best so far; equal is not better."""
        watch = self._plan.watch
        if watch is None or self.mode != "fit":
            return
        if watch.name not in self.metrics:
            stage = watch.name.split("/")[0]
            if any(name.startswith(f"{stage}/") for name in self.metrics):
                raise KeyError(f"{watch.who} watches it, but there is {unknown_metric(watch.name, self.metrics)}")
            return
        value, best = self.metrics[watch.name], self.training_state.best
        if best is None or best.name != watch.name or watch.better(value, best.value):
            if value == value:  # a NaN is never the best
                self.training_state.best = Best(watch.name, value, self.epoch, self.clock.steps)
                fire(self, POINTS["after_best"], self._plan.after_best)

    def _warn_of_unseen_watch(self) -> None:
        watch = self._plan.watch
        if self.mode == "fit" and watch is not None and self.best is None and self.clock.epochs:
            warnings.warn(f"{watch.who} watches {unknown_metric(watch.name, self.metrics)}", stacklevel=2)

    # Rows of the history --------------------------------------------------------------------------------------------

    def _current_row(self) -> Row:
        at = {"epoch": self.epoch, "step": self.clock.steps, "batch": self.clock.batches}
        if self._pass.iterating:
            if self._row_of_iteration is None:
                self._row_of_iteration = self.history.add("iter", stage=self.stage, **at)
            return self._row_of_iteration
        if len(self._open) > 1 and isinstance(inner := self._open[-2], Pass) and inner.iterating:
            if self._row_of_pass is None:
                self._row_of_pass = self.history.add("iter", stage=self.stage, **at)
            return self._row_of_pass
        if self._row_of_epoch is None:
            self._row_of_epoch = self.history.add("epoch", **(at if self.mode == "fit" else {"mode": self.mode}))
        return self._row_of_epoch

    def _write_row(self, kind: str) -> None:
        """A row is complete: tells those who listen, and lets it go."""
        name = {"iter": "_row_of_iteration", "epoch": "_row_of_epoch", "pass": "_row_of_pass"}[kind]
        self.row = getattr(self, name)
        setattr(self, name, None)
        if self.row is None:
            return
        if kind == "epoch" and self.mode == "fit":
            self.row.at.update(step=self.clock.steps, batch=self.clock.batches)
        if self._plan.after_log:
            fire(self, POINTS["after_log"], self._plan.after_log)
        self.row = None

    def _fail_in(self, verb: str, error: BaseException) -> None:
        self._failing = error
        note(self, error, f"run.{verb}()")


_OF_PASS = ("stage", "loader_name", "_pass", "_at", "loss_weight", "_row_of_iteration", "_forwarded")


def _raiser(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act
