"""How a run takes back what ``state.collect`` saved, so that it goes on as if it had never been interrupted.

The state is loaded before ``before_run``, so that every callback finds things as they were. The points that open the
run, the epoch and the pass are then played as ever; what their players changed is set right again at the place where
the run stood.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from cadenza.engine import resuming
from cadenza.engine.dispatch import fire
from cadenza.engine.open_loader import restore_unread
from cadenza.engine.requests import grant
from cadenza.engine.resuming import FreshStart
from cadenza.foundation.rng import set_rng_state, unpack_rng
from cadenza.foundation.warn import notice, warn
from cadenza.history import Best
from cadenza.points import POINTS
from cadenza.resume.collect import alike, decoded, load_buffers, load_module
from cadenza.resume.optimizer_groups import accept_known_groups, check_schedulers, load_outside, restore_groups
from cadenza.resume.per_rank import accumulating, keep_step

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.engine.stack import Pass
    from cadenza.run import Run

log = logging.getLogger("cadenza")


class Resume(FreshStart):
    """A saved state on its way into a run, until the run stands where it was saved."""

    is_resuming = True

    def __init__(self, state: dict[str, Any], name: str = "") -> None:
        self.state = state
        self.name = name
        self.position = state["position"]
        self.done = [tuple(one) for one in self.position["done"]] if self.position else []
        self._undo: list[Callable[[], None]] = []

    # Before the run begins ------------------------------------------------------------------------------------------

    def limit(self, run: Run, epochs: int | None, steps: int | None) -> None:
        """Epochs and steps are the interrupted fit's total, counted from where that began."""
        fit = self.state["fit"]
        last_epoch = None if epochs is None else fit["epochs"] + epochs
        last_step = None if steps is None else fit["steps"] + steps
        run.end_at(last_epoch, last_step, (fit["epochs"], fit["steps"]))

    def is_finished(self, run: Run) -> bool:
        """Whether nothing is left to train: the saved run had ended, and no more is wanted of it now than then; or it
        was saved past the end of this fit, inside a later and longer one of the same script."""
        clock = self.state["clock"]
        started = clock["epochs"] + (self.position is not None)
        last_step = sys.maxsize if run.num_steps is None else run.num_steps
        if clock["steps"] > last_step or (run.num_epochs is not None and started > run.num_epochs):
            return True
        if self.state["ended"] is None:
            return False
        reached = run.num_epochs is not None and clock["epochs"] >= run.num_epochs
        return self._is_as_long(run) or reached or clock["steps"] >= last_step

    def _is_as_long(self, run: Run) -> bool:
        fit = self.state["fit"]
        return (run.num_epochs, run.num_steps) == (fit["until_epoch"], fit["until"])

    def load(self, run: Run, callbacks: Sequence[Callback]) -> None:
        """Restores everything but the place in the epoch."""
        check_schedulers(run, self.state.get("scheduler_kinds", []))
        if "groups" in self.state:  # a checkpoint of an earlier version has none
            restore_groups(run, self.state["groups"], self.state["optimizers"])
        self._undo = [accept_known_groups(optimizer) for optimizer in run.optimizers]
        state = self.state = run.training_state.strategy.taken(run, self.state)
        self._load_modules(run, opening=True)
        _load_each("optimizer", run.optimizers, state["optimizers"], load_optimizer)
        self._load_outside(run)
        _load_each("scheduler", run.schedulers, state["schedulers"], _load_scheduler)
        run.clock.load_state_dict(state["clock"])
        run.history.load_state_dict(state["history"])
        if self.position is not None and self.position["row"] is not None:
            run.history.rows[self.position["row"]].complete = False  # the epoch that was open goes on with it
        run.store.update(state["store"])
        resuming.restore_progress(run, state["feeds"], state.get("cadences", {}))
        run.training_state.best = None if state["best"] is None else Best(**state["best"])
        run.training_state.stop_reason = state.get("stop_reason")
        run.training_state.seeded = True
        run.training_state.step = state.get("step")
        run.metrics.clear()
        run.metrics.update(state["metrics"])
        run.epoch = run.clock.epochs
        _load_callbacks(callbacks, state["callbacks"])
        self._keep_step(run, callbacks)
        if run.is_main:
            notice(self._in_words(run))

    def _in_words(self, run: Run) -> str:
        """What is resumed, and where it goes on, counted from 1."""
        folder = getattr(run.experiment, "folder", None)
        clock, ended = run.clock, self.is_finished(run)
        if ended:
            what = f"checkpoint {self.name}" if folder is None else f"run {folder}"
            why = f": {run.training_state.stop_reason}" if run.training_state.stop_reason else ""
            return f"nothing to do: {what} has ended after {clock.epochs} epochs and {clock.steps} steps{why}"
        where = f"from epoch {clock.epochs + 1}"
        if self.position is not None and self.position["pass"] is not None:
            where += f", batch {self.position['pass']['consumed']}"
        elif self.position is not None and self.position["trained"]:
            where += ", after its training"
        return f"resumed {where} (checkpoint {self.name})" if folder is None else f"resumed run {folder} {where}"

    def _load_modules(self, run: Run, *, opening: bool) -> None:
        try:
            load_module(run.module, self.state["model"], run.device)
        except RuntimeError as error:
            error.add_note(
                f"cadenza: the checkpoint {self.name} is of another model than this trainer's. To begin a new training "
                "with those weights that fit, leave resume out and add the callback Load(path, strict=False)"
            )
            raise
        if not opening or not self.state.get("replaced"):  # a callback replaces it again while the run is opened
            load_module(run.criterion, self.state["criterion"], run.device)
        load_buffers(run.module, run.criterion, self.state.get("buffers", {}), run.device)

    def loaded(self, run: Run) -> None:
        """Runs ``after_load``. Between two epochs the run is already where it was saved."""
        fire(run, POINTS["after_load"], run.plan.after_load)
        if self.position is None:
            self.arrive(run)

    def _load_outside(self, run: Run) -> None:
        if "outside" in self.state:  # a checkpoint of an earlier version has none
            load_outside(run, self.state["outside"])

    def load_ended(self, run: Run, callbacks: Sequence[Callback]) -> None:
        """Leaves everything as the run that had ended left it, its loaders and random numbers too."""
        self.load(run, callbacks)
        self.leave(run)

    def leave(self, run: Run) -> None:
        """A run that does not open the epoch in which it was saved leaves its loaders and random numbers as saved, and
        has nothing new to save."""
        resuming.drop_save(run)
        self.release()
        restore_unread(run)
        self.set_rng(run)

    def release(self) -> None:
        """The run is open, or will not be: adding a parameter group twice is an error again."""
        for undo in self._undo:
            undo()
        self._undo = []

    def _keep_step(self, run: Run, callbacks: Sequence[Callback]) -> None:
        """With another number of processes a step still sees as many samples; so it does in runs after that."""
        saved, before = self.state.get("step"), self.state.get("saved_with", run.world_size)
        if saved is None or not (saved["adapted"] or before != run.world_size):
            return
        keep_step(run, callbacks, saved, before)
        owner = accumulating(callbacks)
        if owner is not None and owner.name in self.state["callbacks"]:
            self.state["callbacks"] = {**self.state["callbacks"], owner.name: owner.state_dict()}

    # While it opens its spans ---------------------------------------------------------------------------------------

    def reopen_epoch(self, run: Run) -> None:
        """The epoch that was open goes on with its row and with what was done in it."""
        if self.position is None:
            return
        resuming.reopen_epoch(run, self.position, self.done)
        if "skip_validation" in self.state.get("asked", ()):
            resuming.ask_again(run, "skip_validation")  # if training was done, the validation would be opened next

    def skips(self, run: Run, stage: str, name: str | None) -> bool:
        """Whether this pass was done in the epoch before the run was interrupted."""
        if (stage, name) not in self.done:
            return False
        self.done.remove((stage, name))
        return True

    def reopen_pass(self, run: Run, this: Pass) -> None:
        """The training pass goes on after the batches that were consumed."""
        inside = self.position["pass"] if self.position else None
        if inside is None or not this.training:
            return
        resuming.reopen_pass(run, this, inside)

    def set_rng(self, run: Run) -> None:
        set_rng_state(unpack_rng(self.state["rng"]), run.device)

    def arrive(self, run: Run) -> None:
        """The run stands where it was saved: whatever its callbacks did on the way is set right. This ends the
        resuming."""
        self.release()
        inside = self.position["pass"] if self.position else None
        self._load_modules(run, opening=False)
        self._load_outside(run)
        gradients = self.state["gradients"]
        for name, parameter in run.module.named_parameters():
            gradient = gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        resuming.arrived(run, held=bool(inside["held"] if inside else run.carries_gradients and gradients))
        run.metrics.clear()
        run.metrics.update(self.state["metrics"])
        self._set_row(run)
        for callback in run.callbacks:
            saved = self.state["callbacks"].get(callback.name)
            if saved is not None and not alike(callback.state_dict(), saved):
                log.debug("%s changed its state while the run was opened; it gets the saved one again", callback.name)
                callback.load_state_dict(saved)
        self._ask_again(run)
        self.set_rng(run)

    def _ask_again(self, run: Run) -> None:
        """What was asked at the place of the save is still to be done; not a stop of a run that is now to be longer."""
        for name in self.state.get("asked", ()):
            if name != "stop":
                resuming.ask_again(run, name)
            elif self._is_as_long(run):
                resuming.ask_again(run, name)
                run.stop_reason = self.state["stop_reason"]
        for request, rule, reason in self.state.get("waiting", ()):  # what not all processes had agreed on
            if run.processes.wait_again(request, rule, reason):
                grant(run, [(request, reason)])

    def _set_row(self, run: Run) -> None:
        row = resuming.row_of_epoch(run)
        if self.position is not None and row is not None and self.position["row"] is not None:
            row.clear()
            row.update(self.position["row_values"])


class Found(Protocol):
    """A checkpoint that was found."""

    @property
    def state(self) -> dict[str, Any]: ...
    @property
    def name(self) -> str: ...


def find(resume: Any, run: Run, callbacks: Sequence[Callback], apart: Any = None) -> Found | None:
    """The checkpoint that ``resume`` means: with "auto" the newest of the callback that saves, or None if there is none
    yet; else the newest in a folder, or that in the folder itself. ``apart`` is given by processes that each take their
    part of it. An experiment without a folder chooses first which of its runs goes on."""
    saver: Any = next((callback for callback in callbacks if "save" in callback.owns), None)
    if resume == "auto":
        if saver is None:
            raise ValueError('resume="auto" goes on from what Checkpoint saved, but there is no such callback')
        choose = getattr(run.experiment, "choose_run", None)
        if choose is not None and not choose(run, saver):
            return None
        found: Found | None = saver.newest(run.experiment, apart)
        return found
    if not isinstance(resume, str | PathLike):
        raise TypeError(f'resume is "auto" or the path of a checkpoint, not {type(resume).__name__}')
    from cadenza.checkpoint import read_at

    return read_at(resume, apart=apart)


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Loads ``state`` without torch's cast of what is kept in another precision than the weights."""
    missing, expected = [], set(optimizer.defaults) - {"differentiable"}  # which torch adds when something is loaded
    try:
        optimizer.load_state_dict(state)
    except KeyError as error:  # the kinds of two optimizers are compared elsewhere, if the checkpoint names them
        missing.append(str(error.args[0]))
    missing += sorted({name for group in optimizer.param_groups for name in expected if name not in group})
    if missing:
        raise ValueError(
            f"the checkpoint holds the state of another kind of optimizer than {type(optimizer).__name__}: it has no "
            f"{', '.join(missing)}. Resume with the optimizer that it was saved with; to begin a new training with its "
            "weights, leave resume out and add the callback Load(path)"
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, saved in state["state"].items():
        loaded = optimizer.state[parameters[int(index)]]
        for name, value in saved.items():
            if isinstance(value, Tensor) and loaded[name].dtype != value.dtype:
                loaded[name] = value.to(loaded[name].device)


def _load_scheduler(scheduler: Any, state: Any) -> None:
    scheduler.load_state_dict(decoded(state, scheduler.state_dict()))


def _load_each(what: str, objects: list[Any], states: list[Any], load: Any) -> None:
    if len(objects) != len(states):
        raise ValueError(f"the checkpoint holds {len(states)} {what}s, this trainer has {len(objects)}")
    for one, state in zip(objects, states, strict=True):
        load(one, state)


def _load_callbacks(callbacks: Sequence[Callback], states: dict[str, Any]) -> None:
    known = {callback.name: callback for callback in callbacks}
    for name in states.keys() - known.keys():
        warn(f"the checkpoint holds the state of a callback {name!r}, which this trainer does not have")
    for name, callback in known.items():
        if name in states:
            callback.load_state_dict(states[name])
        elif callback.state_dict():
            log.info("the checkpoint holds no state of %s, which begins anew", name)
