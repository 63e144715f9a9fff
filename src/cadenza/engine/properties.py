"""What can be known of a run by asking it: all of it follows from its fields."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from cadenza.engine.log_rows import Rows
from cadenza.engine.requests import PAUSED, STOP
from cadenza.engine.stack import Pass

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.engine.fresh_start import FreshStart
    from cadenza.engine.processes import Processes
    from cadenza.engine.trainer_state import Training
    from cadenza.history import Best, Watched
    from cadenza.main_callback import MainCallback
    from cadenza.points import Point


class Facts(Rows):
    """The part of a run that a callback reads and that nobody sets."""

    training_state: Training
    optimizers: list[Optimizer]
    schedulers: list[Any]
    rank: int
    num_epochs: int | None
    _last_step: int
    _held: bool
    _resume: FreshStart
    _replaying: bool
    _stepped_itself: bool
    _thread: int
    _processes: Processes
    _ending: bool
    _begun: bool
    _ended: bool

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
        return self._pass.loader

    @property
    def batches_seen(self) -> int:
        """How many batches the pass that is open has fetched."""
        return self._pass.index + 1

    @property
    def point(self) -> Point | None:
        """The point that ran last; None before the first."""
        return self._at

    @property
    def thread(self) -> int:
        """The thread that began the run, as ``threading.get_ident`` names it; only it may use the run's verbs."""
        return self._thread

    @property
    def processes(self) -> Processes:
        """The processes that train together; for a single one it gives the trivial answers."""
        return self._processes

    @property
    def open_stages(self) -> tuple[str, ...]:
        """The stages whose passes are open, the outermost first: in a validation by steps ``("train", "val")``."""
        return tuple(frame.stage for frame in self._open if isinstance(frame, Pass))

    @property
    def is_iterating(self) -> bool:
        """Whether an iteration is open, between the fetch of its batch and its end."""
        return self._pass.iterating

    @property
    def is_pass_complete(self) -> bool:
        """Whether the pass that is open has had all its batches; True outside a pass."""
        return getattr(self._pass, "complete", True)

    @property
    def is_resuming(self) -> bool:
        """Whether a saved state is on its way into the run; no longer once the run is where it was saved."""
        return self._resume.is_resuming

    @property
    def is_recomputing(self) -> bool:
        """Whether the batch is computed once more inside a step, as LBFGS and SAM need it."""
        return self._replaying

    @property
    def stepped_in_backward(self) -> bool:
        """Whether the user's own backward has made the step of this iteration."""
        return self._stepped_itself

    @property
    def num_steps(self) -> int | None:
        """The step at which this fit ends, if it was given in steps."""
        return None if self._last_step == sys.maxsize else self._last_step

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
        return self._plan.watch

    @property
    def is_nested(self) -> bool:
        """Whether the pass that is open lies inside an iteration of another."""
        return sum(isinstance(frame, Pass) for frame in self._open) > 1

    @property
    def is_last_epoch(self) -> bool:
        """Whether no epoch follows the one that is open, or that just ended."""
        if self._asked & STOP or self.clock.steps >= self._last_step:
            return True
        behind = bool(self._open) and self.clock.epochs == self.epoch
        return self.num_epochs is not None and self.clock.epochs + behind >= self.num_epochs

    @property
    def is_paused(self) -> bool:
        """Whether the run was stopped to go on later, as when the time of a job is over."""
        return self.stop_reason is not None and self.stop_reason.startswith(PAUSED)

    @property
    def can_save(self) -> bool:
        return self._plan.saver is not None

    @property
    def is_ending(self) -> bool:
        """Whether ``after_run`` was played, so that a save is the last one."""
        return self._ending

    @property
    def holds_gradients(self) -> bool:
        """Whether gradients of earlier batches wait for a step."""
        return self._held

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
