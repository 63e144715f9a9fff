"""What a callback reads of a run: the fields of an iteration, and what follows from the state of the loop."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from cadenza.data import join, split
from cadenza.engine.log_rows import Rows
from cadenza.engine.requests import PAUSED, STOP
from cadenza.engine.stack import Pass
from cadenza.engine.state import GONE, Later, OnPage
from cadenza.points import FIELDS, Point

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.engine.processes import Processes
    from cadenza.engine.trainer_state import Training
    from cadenza.foundation.module_modes import Flags
    from cadenza.history import Best, Watched
    from cadenza.main_callback import MainCallback
    from cadenza.plan import Plan


class FieldError(AttributeError):
    """A field was read where it does not exist. The text is made only when somebody reads it."""

    def __init__(self, name: str, at: Point | None, stage: str | None) -> None:
        super().__init__(name=name)
        self.at = at
        self.stage = stage

    def __str__(self) -> str:
        life = FIELDS[str(self.name)]
        here = self.at.name if self.at else "outside a run"
        stage = f" ({self.stage})" if self.stage else ""
        until = "a prediction has no loss; " if self.stage == "pred" and self.name == "loss" else ""
        if here == "after_fetch" == life.first:
            return (
                f"run.{self.name} does not exist here: this fetch{stage} found the end of the loader, which plays its "
                f'points, too. Play at before_iter, or ask hasattr(run, "{self.name}")'
            )
        return (
            f"run.{self.name} exists from {life.first} to the end of the iteration, unless it was skipped; "
            f"{until}you are at {here}{stage}"
        )


class Fields(Rows):
    """The part of a run that callbacks read. A field of an iteration is gone when the iteration ends: nothing of the
    last one is shown in the next."""

    training_state: Training
    optimizers: list[Optimizer]
    schedulers: list[Any]
    rank: int
    num_epochs: int | None

    @property
    def batch(self) -> Any:
        """What the loader gave, on the device."""
        if self._state.batch is GONE:
            raise FieldError("batch", self._state.at, self.stage)
        return self._state.batch

    @batch.setter
    def batch(self, value: Any) -> None:
        self._state.give(value)

    @batch.deleter
    def batch(self) -> None:
        self._state.give(GONE)

    @property
    def output(self) -> Any:
        """What the model returned."""
        if self._state.output is GONE:
            raise FieldError("output", self._state.at, self.stage)
        if type(self._state.output) is Later:
            self._state.set_output(self._state.output.copy())
        return self._state.output

    @output.setter
    def output(self, value: Any) -> None:
        self._state.set_output(value)

    @output.deleter
    def output(self) -> None:
        self._state.set_output(GONE)

    @property
    def loss(self) -> Tensor:
        """The loss of this batch, with its graph."""
        if self._state.loss is GONE:
            raise FieldError("loss", self._state.at, self.stage)
        if type(self._state.loss) is OnPage:
            self._state.set_loss(self._state.loss.copy())
        return self._state.loss  # type: ignore[no-any-return]  # a call to cast would be made in every step

    @loss.setter
    def loss(self, value: Tensor) -> None:
        self._state.set_loss(value)

    @loss.deleter
    def loss(self) -> None:
        self._state.set_loss(GONE)

    @property
    def batch_idx(self) -> int:
        """The number of this batch in its pass, from 0."""
        if self._state.batch is GONE:
            raise FieldError("batch_idx", self._state.at, self.stage)
        return self._state.current.index

    @property
    def skipped(self) -> frozenset[str]:
        """The actions of this iteration that were asked away."""
        if not self._state.current.iterating:
            raise FieldError("skipped", self._state.at, self.stage)
        return self._state.skipped

    @property
    def inputs(self) -> Any:
        """The part of the batch that the model gets. Assigning it changes the batch."""
        return split(self._whole("inputs"))[0]

    @inputs.setter
    def inputs(self, value: Any) -> None:
        self._state.give(join(self._whole("inputs"), inputs=value))

    @property
    def targets(self) -> Any:
        """The part of the batch that the loss gets. Assigning it changes the batch."""
        return split(self._whole("targets"))[1]

    @targets.setter
    def targets(self, value: Any) -> None:
        self._state.give(join(self._whole("targets"), targets=value))

    def _whole(self, part: str) -> Any:
        if self._state.batch is GONE:
            raise FieldError(part, self._state.at, self.stage)
        return self._state.batch

    @property
    def optimizer(self) -> Optimizer:
        """The first optimizer."""
        return self.optimizers[0]

    @property
    def scheduler(self) -> Any:
        """The first scheduler, or None."""
        return self.schedulers[0] if self.schedulers else None

    @property
    def loader(self) -> Any:
        """The loader of the pass that is open, or None."""
        return self._state.current.loader

    @property
    def batches_seen(self) -> int:
        """How many batches the pass that is open has fetched."""
        return self._state.current.index + 1

    @property
    def point(self) -> Point | None:
        """The point that ran last; None before the first."""
        return self._state.at

    @property
    def thread(self) -> int:
        """The thread that began the run, as ``threading.get_ident`` names it; only it may use the run's verbs."""
        return self._state.thread

    @property
    def plan(self) -> Plan:
        """Which callbacks run at which point, as worked out for this run."""
        return self._state.plan

    @property
    def caller(self) -> Callback | None:
        """With several processes, the callback that is running; None in the body of the loop."""
        return self._state.caller

    @property
    def rounds(self) -> int | None:
        """With several processes, how many iterations the open pass has for all of them; None if that is not known."""
        return self._state.current.rounds

    @property
    def samples_of_all(self) -> float | None:
        """With several processes, how many samples all of them have in this iteration; None if that is not known."""
        return self._state.current.samples_of_all

    @property
    def all_have_batch(self) -> bool:
        """Whether each of the processes that train together has a batch in this iteration."""
        return self._state.current.all_have

    @property
    def processes(self) -> Processes:
        """The processes that train together; for a single one it gives the trivial answers."""
        return self._state.processes

    @property
    def open_stages(self) -> tuple[str, ...]:
        """The stages whose passes are open, the outermost first: in a validation by steps ``("train", "val")``."""
        return tuple(frame.stage for frame in self._state.frames if isinstance(frame, Pass))

    @property
    def training_modes(self) -> Flags:
        """While an evaluation is open, each module with the train or eval flag that it has in training."""
        return getattr(self._state.current, "flags", [])

    @property
    def is_iterating(self) -> bool:
        """Whether an iteration is open, between the fetch of its batch and its end."""
        return self._state.current.iterating

    @property
    def is_pass_complete(self) -> bool:
        """Whether the pass that is open has had all its batches; True outside a pass."""
        return getattr(self._state.current, "complete", True)

    @property
    def is_resuming(self) -> bool:
        """Whether a saved state is on its way into the run; no longer once the run is where it was saved."""
        return self._state.resume.is_resuming

    @property
    def is_recomputing(self) -> bool:
        """Whether the batch is computed once more inside a step, as LBFGS and SAM need it."""
        return self._state.recomputing

    @property
    def stepped_in_backward(self) -> bool:
        """Whether the user's own backward has made the step of this iteration."""
        return self._state.stepped_itself

    @property
    def num_steps(self) -> int | None:
        """The step at which this fit ends, if it was given in steps."""
        return None if self._state.last_step == sys.maxsize else self._state.last_step

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
    def watch(self) -> Watched | None:
        """The metric that decides what is best, if there is one."""
        return self._state.plan.watch

    @property
    def is_nested(self) -> bool:
        """Whether the pass that is open lies inside an iteration of another."""
        return sum(isinstance(frame, Pass) for frame in self._state.frames) > 1

    @property
    def is_last_epoch(self) -> bool:
        """Whether no epoch follows the one that is open, or that just ended."""
        if self._state.asked & STOP or self.clock.steps >= self._state.last_step:
            return True
        behind = bool(self._state.frames) and self.clock.epochs == self.epoch
        return self.num_epochs is not None and self.clock.epochs + behind >= self.num_epochs

    @property
    def is_paused(self) -> bool:
        """Whether the run was stopped to go on later, as when the time of a job is over."""
        return self.stop_reason is not None and self.stop_reason.startswith(PAUSED)

    @property
    def can_save(self) -> bool:
        return self._state.plan.saver is not None

    @property
    def is_ending(self) -> bool:
        """Whether ``after_run`` was played, so that a save is the last one."""
        return self._state.ending

    @property
    def holds_gradients(self) -> bool:
        """Whether gradients of earlier batches wait for a step."""
        return self._state.held

    @property
    def is_open(self) -> bool:
        """Whether this run has begun and not ended yet."""
        return self._state.begun and not self._state.ended

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """All callbacks of this run in the order in which they play."""
        return self._state.plan.callbacks

    @property
    def main(self) -> MainCallback:
        """The callback that owns the behaviours."""
        return self._state.plan.main
