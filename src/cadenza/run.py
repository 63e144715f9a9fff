"""What a callback sees and asks, and the verbs in which a loop is written."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor
from torch.optim import Optimizer

from cadenza.clock import Cadence, Duration
from cadenza.engine import boundaries, lifecycle, nested_passes, passes
from cadenza.engine.dispatch import Exits, note
from cadenza.engine.error_hints import hint
from cadenza.engine.fields import NOTHING, UNWEIGHTED
from cadenza.engine.fresh_start import FRESH_START, FreshStart
from cadenza.engine.processes import ALONE, Processes
from cadenza.engine.properties import Facts
from cadenza.engine.requests import EXCHANGE, SAVED
from cadenza.engine.stack import NO_VERBS, Epoch, Frame, Outside, Pass, Verbs
from cadenza.engine.stalled import check_gradients
from cadenza.foundation.arguments import whole
from cadenza.history import History, Metrics
from cadenza.points import Point

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.engine.trainer_state import Training
    from cadenza.execution.executor import Executor
    from cadenza.plan import Plan


class Run(Facts):
    """One fit, validate, test or predict: handed to every callback at every point."""

    def __init__(self, training: Training, make_plan: Callable[[Run], Plan], mode: str = "fit", **limits: Any) -> None:
        super().__init__()
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
        world = training.world
        self.rank, self.local_rank, self.world_size = world.rank, world.local_rank, world.world_size
        self.mode = mode
        self.stage: str | None = None
        self.loader_name: str | None = None
        self.epoch = self.clock.epochs
        self.num_epochs: int | None = None
        self.train_loader: Any = None
        self.val_loader: Any = None
        self.test_loaders: Any = None
        self.error: BaseException | None = None
        self.loss_weight: float | Tensor = UNWEIGHTED
        self.scaler: Any = None
        self.autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        """What the model is called in by forwards beside the training, which run no points; ``Precision`` sets it."""
        self.carries_gradients = False
        """Whether gradients that wait for a step when an epoch ends are kept for the next one."""
        self.stop_reason: str | None = None
        self.saved: str | None = None
        self._make_plan = make_plan
        self._arguments: dict[str, Any] = dict(limits)
        self._set_engine()
        self.limit(**limits)
        self._known_names = frozenset(vars(self))

    def _set_engine(self) -> None:
        """What the engine notes for itself."""
        self._executor: Executor | None = None
        self._plan: Plan
        self._at: Point | None = None
        self._asked = 0
        self._replaying = False
        self._held = False
        self._idle = 0
        self._told_of_rate = False
        self._had_held = False
        self._in_backward = False
        self._stepped_itself = False
        self._first: tuple[Any, Any] | None = None
        self._forwarded = -1
        self._skipped = NOTHING
        self._open: list[Frame] = []
        self._epoch: Epoch
        self._outside = Outside()
        self._pass: Pass | Outside = self._outside
        self._verbs: Verbs = NO_VERBS
        self._exits: Exits = []
        self._blamed: BaseException | None = None
        self._failing: BaseException | None = None
        self._owed: BaseException | None = None
        self._removed: list[Callback] = []
        self._processes: Processes = ALONE
        self._playing: Callback | None = None
        self._exchange: Callable[[Run], None]
        self._last_step = sys.maxsize
        self._began = (self.clock.epochs, self.clock.steps)
        self._ending = False
        self._committed: list[str] = []
        self._resume: FreshStart = FRESH_START
        self._feeds: dict[str, tuple[Any, Any]] = {}
        self._feed_states: dict[str, Any] = {}
        self._cadences: dict[str, Cadence] = {}
        self._on_cpu = self.device.type == "cpu"
        self._thread = threading.get_ident()
        self._begun = False
        self._ended = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "A run cannot be pickled or copied. Keep the values that you need, such as run.metrics or "
            "run.module.state_dict(); a callback that is pickled must not keep the run itself"
        )

    # What a callback does -------------------------------------------------------------------------------------------

    def predict(self, loader: Iterable[Any]) -> Any:
        """The outputs for ``loader``, in order, on the CPU. Plays no points; fields, modes and RNG are as before."""
        return nested_passes.predict(self, loader)

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """The mean loss over ``loader`` as ``{"loss": …}``. Plays no points; fields, modes and RNG are as before."""
        return nested_passes.evaluate(self, loader)

    def between_iterations(self, function: Callable[[Run], None]) -> None:
        """Calls ``function`` with the run once, between this iteration and the next."""
        self._exchange = function
        self._asked |= EXCHANGE

    def tell_saved(self, names: Iterable[str]) -> None:
        """Lets ``after_save`` be played at the next safe point, once for each checkpoint that was committed."""
        self._committed.extend(names)
        if self._committed:
            self._asked |= SAVED

    def from_any_rank(self, value: Any) -> Any:
        """The value of the first process that has one, on all of them; None if none has. All of them must ask."""
        return self._processes.from_any(value)

    def from_main(self, value: Any) -> Any:
        """The value of rank 0 on all processes. All of them must ask."""
        return self._processes.from_main(value)

    def joined(self, outputs: list[Any], counts: list[int]) -> tuple[list[Any], list[int]]:
        """Under many processes what all of them made of their batches, in the order of the data set."""
        return self._processes.joined(outputs, counts)

    def recompute(self) -> Tensor:
        """Runs zero_grad, forward, loss and backward of this batch once more inside a step; returns the new loss."""
        return self._verbs.recompute(self)

    def step_optimizer(self, optimizer: Optimizer) -> None:
        """Steps one optimizer as this run needs it: through the fp16 scaler, with a closure where it wants one."""
        self._verbs.step_optimizer(self, optimizer)

    # The verbs ------------------------------------------------------------------------------------------------------

    def limit(self, epochs: int | None = None, steps: int | None = None) -> None:
        """Sets how much further this fit goes."""
        for name, amount in (("epochs", epochs), ("steps", steps)):
            if amount is not None:
                whole(name, amount, 1)
        if epochs is not None and steps is not None:
            raise ValueError("give epochs or steps, not both")
        self._began = (self.clock.epochs, self.clock.steps)
        self.num_epochs = None if epochs is None else self.clock.epochs + epochs
        self._last_step = sys.maxsize if steps is None else self.clock.steps + steps

    def cadence(self, interval: str | Duration) -> Cadence:
        """Tells the loop when a multiple of ``interval`` was passed. A resumed run knows what the loop was told."""
        key = str(Duration.interval(interval))
        if key not in self._cadences:
            self._cadences[key] = self._processes.cadence(self, interval)
        return self._cadences[key]

    def epochs(self) -> Iterator[int]:
        """The epochs of this fit."""
        if self.is_open:
            passes.settle(self)
        boundaries.may_open(self, "epoch")
        if self.num_epochs is None and self.num_steps is None:
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
            return self._verbs.train_step(self)
        except BaseException as error:
            self._fail_in("train_step", error)
            raise

    def eval_step(self) -> bool:
        """One whole iteration of validation, test or prediction, without gradients."""
        try:
            return self._verbs.eval_step(self)
        except BaseException as error:
            self._fail_in("eval_step", error)
            raise

    def forward(self, compute: Callable[[Run], Any] | None = None) -> bool:
        """The forward and loss spans; ``compute`` takes the place of the behaviour for this call."""
        try:
            return self._verbs.forward(self, compute)
        except BaseException as error:
            self._fail_in("forward", error)
            raise

    def backward(self) -> bool:
        """The backward span."""
        try:
            return self._verbs.backward(self)
        except BaseException as error:
            self._fail_in("backward", error)
            raise

    def step(self) -> bool:
        """The step and zero_grad spans."""
        try:
            if self._pass.index == 0:
                check_gradients(self)
            return self._verbs.step(self)
        except BaseException as error:
            self._fail_in("step", error)
            raise

    # Beginning and end ----------------------------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Whether this run resumes one that had ended, so that nothing is left to do."""
        return self._resume.is_finished(self)

    def take_back(self) -> None:
        """Loads what is to be resumed without playing a point."""
        resume, self._resume = self._resume, FRESH_START
        if resume.is_resuming:
            lifecycle.seed(self)
            resume.load_ended(self, self._make_plan(self).callbacks)

    def __enter__(self) -> Self:
        if self._begun:
            raise RuntimeError("a run is used once; ask the trainer for another")
        self._plan = self._make_plan(self)
        self._plan.claim(self)
        self._begun = True
        try:
            lifecycle.begin(self)
        except BaseException as error:
            self._end_with(error)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._end_with(error)
            return
        try:
            lifecycle.finish(self)
        except BaseException as late:
            self._end_with(late)
            raise

    def _end_with(self, error: BaseException) -> None:
        """Ends the run; what another process raised first is raised in the place of ``error``."""
        first = lifecycle.fail(self, error)
        if first is not error:
            raise first from error

    def _ask(self, request: str, reason: str | None = None) -> None:
        if self._open and self._open[-1].abandoned:
            passes.settle(self)  # what is asked after a break is for the loop around it
        super()._ask(request, reason)

    def _fail_in(self, verb: str, error: BaseException) -> None:
        self._failing = error
        said = hint(self, error, verb) if self._blamed is not error else None
        note(self, error, f"run.{verb}()")
        if said is not None:
            error.add_note(f"cadenza: {said}")
