"""The front door."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from cadenza import loop
from cadenza._trainer_arguments import (
    callbacks_of,
    check_criterion,
    check_experiment,
    check_model,
    check_monitors,
    check_trainable,
    choose_device,
    loss_interval,
    optimizers_of,
    scheduler_cadence,
    schedulers_of,
    seed_of,
    tell_of_no_validation,
)
from cadenza.callback import Callback, FunctionCallback
from cadenza.clock import Clock, Duration
from cadenza.data import check_loader
from cadenza.distributed import Strategy, choose
from cadenza.distributed.launchers.extra_callbacks import companions
from cadenza.engine.resuming import resume_from
from cadenza.engine.trainer_state import Training
from cadenza.execution.executor import Execution
from cadenza.execution.scheduling import lr_cadence
from cadenza.explain import Score, explain
from cadenza.foundation.warn import notice
from cadenza.history import History
from cadenza.main_callback import MainCallback
from cadenza.plan import Plan, refuse_if_elsewhere
from cadenza.points import POINTS
from cadenza.registration.checks import (
    CallbackError,
    Joins,
    adopt,
    check_callback,
    check_signature,
    check_together,
    nearest_point,
    stands_for,
)
from cadenza.replay.replay import ReplayResult, replay
from cadenza.resume.collect import beginning
from cadenza.resume.restore import Resume, find
from cadenza.run import Run

if TYPE_CHECKING:
    from cadenza.history import Best

log = logging.getLogger("cadenza")


class Trainer:
    """Trains ``model``, and plays your callbacks at the points of the score.

    ``scheduler`` is one of torch's, or a list of them. They are stepped once an epoch, after validation. With
    ``scheduler_every="step"`` they are stepped after each step that was made, as ``OneCycleLR`` and the warm-ups of
    transformers expect; a step that was skipped or held does not move them.

    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), device="cpu")
    >>> history = trainer.fit(tiny_loader(), epochs=2)
    >>> len(history["train/loss"])
    2
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        criterion: Callable[..., Any] | None = None,
        *,
        scheduler: Any = None,
        scheduler_every: Literal["step", "epoch"] | None = None,
        callbacks: Iterable[Callback | Joins] = (),
        device: str | torch.device = "auto",
        strategy: str | Strategy = "auto",
        execution: str | Execution = "eager",
        experiment: Any = None,
        seed: int | None = None,
    ) -> None:
        check_model(model)
        check_criterion(criterion)
        check_experiment(experiment)
        optimizers = optimizers_of(optimizer)
        options = Execution.of(execution)
        chosen = choose(strategy)
        world = chosen.world()
        schedulers = schedulers_of(scheduler, optimizers)
        self._training = Training(
            module=model,
            optimizers=optimizers,
            criterion=criterion,
            schedulers=schedulers,
            scheduler_every=scheduler_cadence(scheduler_every, schedulers),
            device=choose_device(device, world),
            strategy=chosen,
            world=world,
            beginning=beginning,
            experiment=experiment,
            seed=seed_of(seed, experiment),
            execution=options,
        )
        if options.mode == "captured" and self._training.device.type != "cuda":
            device = self._training.device.type
            raise ValueError(f'execution="captured" needs a CUDA device, not {device!r}; "auto" captures where it can')
        self._taken = {"lr": "the trainer's scheduler"} if self._training.schedulers else {}
        self._callbacks = callbacks_of(callbacks, experiment, self._taken)
        for main in self._callbacks:
            if isinstance(main, MainCallback):
                lr_cadence(main, scheduler_every)
        self._last_run: weakref.ref[Run] | None = None
        for one in companions():
            self.add(one)

    def __repr__(self) -> str:
        training = self._training
        optimizers = ", ".join(type(one).__name__ for one in training.optimizers) or "no optimizer"
        names = ", ".join(one._label or one.name for one in self._callbacks) or "none"
        return (
            f"<Trainer of {type(training.module).__name__} with {optimizers} on {training.device}; callbacks: {names}>"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "A Trainer cannot be pickled or copied. To keep what was trained, save model.state_dict(), or add the "
            "callback Checkpoint and resume. To train in other processes, create the Trainer inside the function that "
            "they call"
        )

    # Callbacks ------------------------------------------------------------------------------------------------------

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """The callbacks in the order in which they were given."""
        return tuple(self._callbacks)

    def add(self, callback: Callback | Joins) -> None:
        """Adds a callback. In a running fit it plays from the next iteration on."""
        added = adopt([callback], self._callbacks)
        for one in added:
            check_callback(one)
        check_together([*self._callbacks, *added], self._taken)
        if self._running is not None:
            for one in added:
                refuse_if_elsewhere(one, self._running)
        self._callbacks += added
        self._replan()

    def remove(self, callback: Callback | Joins) -> None:
        """Removes a callback. In a running fit it plays until the end of this iteration."""
        if not any(stands_for(known, callback) for known in self._callbacks):
            raise ValueError(f"{getattr(callback, 'name', callback)!r} is not among the callbacks of this trainer")
        self._callbacks = [known for known in self._callbacks if not stands_for(known, callback)]
        self._replan()

    def on(self, point: str) -> Callable[[Callable[[Run], Any]], Callable[[Run], Any]]:
        """A decorator that plays a function at ``point``. The same function again replaces the old one."""
        if not isinstance(point, str) or point not in POINTS:
            raise CallbackError(nearest_point(point))

        def register(function: Callable[[Run], Any]) -> Callable[[Run], Any]:
            name = getattr(function, "__qualname__", function)
            check_signature(f"the function {name}", point, function, method=False)
            added = FunctionCallback(point, function)
            old = [known for known in self._callbacks if added.replaces(known)]
            for known in old:
                log.info("%s at %s replaces the function of the same name", added.name, point)
                self._callbacks.remove(known)
            self.add(added)
            return function

        return register

    def _replan(self) -> None:
        if self._running is not None:
            self._running.replan()

    def explain(self) -> Score:
        """The score: every point, who plays there, in which order. Text when printed, a table in a notebook."""
        return explain(Plan(self._callbacks, Run(self._training, self._plan), every_rank=True))

    # Running --------------------------------------------------------------------------------------------------------

    def fit(
        self,
        train_loader: Iterable[Any],
        val_loader: Any = None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        validate_every: str = "1 epoch",
        log_every: str | Duration | Literal[False] | None = None,
        test_loaders: Any = None,
        resume: Any = None,
    ) -> History:
        """Trains for so many more epochs or steps, and returns the history of all fits.

        ``log_every="50 steps"`` logs ``train/loss`` every 50 steps in the row of the iteration, False never. By default
        it is every 50 steps if there is an experiment or a tracker. The mean over the epoch is always logged.

        ``resume="auto"`` goes on from the newest valid checkpoint of this trainer's ``Checkpoint``, if there is one;
        an ``Experiment`` finds the unfinished run of its project, name and settings. A path goes on from the newest in
        that folder, or from that one. Epochs and steps are then those of the whole fit. One line on standard error says
        what was resumed.
        """
        if epochs is None and steps is None:
            raise ValueError("say how far to train: fit(..., epochs=10) or fit(..., steps=1000)")
        every = Duration.interval(validate_every)
        if every.unit not in ("epochs", "steps", "seconds"):
            raise ValueError(f"validate_every counts epochs, steps or time, not {every.unit}: {validate_every!r}")
        log_interval = loss_interval(log_every, self._callbacks)
        check_loader("train_loader", train_loader, several=False)
        for what, loaders in (("val_loader", val_loader), ("test_loaders", test_loaders)):
            if loaders is not None:
                check_loader(what, loaders)
        run = self.run(epochs=epochs, steps=steps)
        run.train_loader, run.val_loader, run.test_loaders = train_loader, val_loader, test_loaders
        self._resume(run, resume)
        run.fit_arguments["validate_every"] = every
        if run.is_finished:
            run.take_back()
            return self.history
        check_monitors(run, self._callbacks)
        with run:
            tell_of_no_validation(run, every)
            loop.fit(run, every, log_interval)
        return self.history

    def validate(self, loader: Any) -> dict[str, float]:
        """The metrics over a validation loader, or over each of a dict of them."""
        check_loader("loader", loader)
        run = self._run("validate")
        run.val_loader = loader
        with run:
            loop.validate(run)
        return dict(run.metrics)

    def test(self, loader: Any) -> dict[str, float]:
        """The metrics over a test loader, or over each of a dict of them."""
        check_loader("loader", loader)
        run = self._run("test")
        run.test_loaders = loader
        with run:
            loop.test(run)
        return dict(run.metrics)

    def predict(self, loader: Iterable[Any], *, device: str | torch.device | None = "cpu") -> Any:
        """The outputs for ``loader`` in order, on the CPU; with ``device=None`` they stay where they were made."""
        check_loader("loader", loader, several=False)
        with self._run("predict") as run:
            return loop.predict(run, loader, None if device is None else choose_device(device))

    def run(self, *, epochs: int | None = None, steps: int | None = None, resume: Any = None) -> Run:
        """A fit that you write yourself: ``with trainer.run(epochs=10) as run:`` and the verbs of ``run``."""
        check_trainable(self._training)
        run = self._run("fit", epochs=epochs, steps=steps)
        self._resume(run, resume)
        return run

    def _resume(self, run: Run, resume: Any) -> None:
        """Gives ``run`` the state to go on from. Which one may depend on the loaders, so set them first."""
        for callback in self._callbacks:
            callback._is_set_up(run, self._callbacks)
        limits = {name: run.fit_arguments[name] for name in ("epochs", "steps")}
        run.fit_arguments["resume"] = None if resume is None else "given"
        if resume is None:
            return
        found = self._find(run, resume)
        if found is not None:
            resumed = Resume(found.state, found.name)
            resume_from(run, resumed)
            resumed.limit(run, **limits)
        elif run.is_main:
            why = getattr(run.experiment, "nothing_found", "") or "no checkpoint was found"
            notice(f"{why}; training starts from the beginning")

    def _find(self, run: Run, resume: Any) -> Any:
        """The checkpoint to go on from; under many processes the one that rank 0 finds."""
        found = self._training.strategy.found(run, self._callbacks, partial(find, resume, run, self._callbacks))
        if run.world_size > 1 and hasattr(run.experiment, "share_folder"):
            run.experiment.share_folder(run)
        return found

    def _run(self, mode: str, **limits: Any) -> Run:
        return Run(self._training, self._plan, mode, **limits)

    def _plan(self, run: Run) -> Plan:
        if self._running not in (None, run):
            raise RuntimeError("this trainer is already running; callbacks use run.evaluate() and run.predict()")
        plan = Plan(self._callbacks, run)
        self._last_run = weakref.ref(run)
        return plan

    @property
    def _running(self) -> Run | None:
        """The run that is open, held weakly so that an ended one lets go of its tensors."""
        run = self._last_run() if self._last_run is not None else None
        return run if run is not None and run.is_open else None

    def replay(self, file: str | PathLike[str]) -> ReplayResult:
        """Plays a file of ``NaNGuard`` again, and says which module first produced a value that is not finite."""
        return replay(self, file)

    # What is known afterwards ---------------------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        return self._training.module

    @property
    def history(self) -> History:
        return self._training.history

    @property
    def clock(self) -> Clock:
        return self._training.clock

    @property
    def best(self) -> Best | None:
        return self._training.best

    @property
    def stop_reason(self) -> str | None:
        """Why the last fit stopped before its end, as whoever asked for it said; None if nobody did."""
        return self._training.stop_reason

    @property
    def store(self) -> dict[str, Any]:
        """What callbacks put into ``run.store``."""
        return self._training.store
