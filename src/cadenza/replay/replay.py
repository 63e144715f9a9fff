"""Playing a recorded stretch of training again, up to the step in which a value was not finite any more."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from cadenza.callback import Callback
from cadenza.clock import Clock
from cadenza.data import to_device
from cadenza.engine.lifecycle import move_to
from cadenza.engine.resuming import renumber_batch
from cadenza.foundation.rng import set_rng_state
from cadenza.history import History
from cadenza.plan import Plan
from cadenza.replay.find_nonfinite import Finding, Search
from cadenza.replay.snapshot import plays_again, restore, to_host
from cadenza.replay.tape import in_words, read_tape
from cadenza.run import Run

if TYPE_CHECKING:
    from cadenza.trainer import Trainer


@dataclass(frozen=True)
class ReplayResult:
    """What a replay found. Steps, epochs and batches count from 0; as text, epochs and batches from 1.

    ``kind`` says what was first not finite: "batch", the data itself; "parameter", "output", "loss", "gradient", in
    this order of a step; or "nothing", if it did not happen again. ``module`` is the name of the module that it
    belongs to, "criterion" for the loss. ``exact`` says whether every loss up to there was the recorded one, bit for
    bit. ``batch`` is the batch.
    """

    step: int
    epoch: int
    batch_idx: int
    module: str | None
    kind: str
    detail: str
    exact: bool
    batch: Any = field(repr=False, compare=False, default=None)

    def __str__(self) -> str:
        place = in_words(self.epoch, self.batch_idx, self.step)
        equal = "The losses up to there are the recorded ones, bit for bit."
        if not self.exact:
            equal = "The losses differ from the recorded ones: the code, the data or the machine is not the same."
        if self.kind == "nothing":
            return f"Everything was finite up to {place}. {equal}"
        return f"At {place} the first that is not finite is {self.detail}. {equal}"


def replay(trainer: Trainer, file: str | os.PathLike[str]) -> ReplayResult:
    """Plays the steps in ``file`` again and says which module first produced a value that is not finite.

    The trainer must be built as it was: the same model, optimizers, criterion and callbacks; those that measure, report
    and save are left out. Afterwards model, optimizers, schedulers, callbacks, clock and random numbers are as they
    were just before that batch was trained on, so that one can look at it; the history is left alone.
    """
    if trainer._running is not None and trainer._running.is_open:
        raise RuntimeError("this trainer is running; replay when its run has ended")
    tape = read_tape(file)
    detective = _Detective(tape)
    _play(trainer, tape, detective)
    finding, index = detective.finding, detective.index
    record = tape["batches"][index]
    _play(trainer, tape, _Conductor(tape, stop_at=index))
    return ReplayResult(
        step=record["step"],
        epoch=record["epoch"],
        batch_idx=record["batch_idx"],
        module=finding.module if finding else None,
        kind=finding.kind if finding else "nothing",
        detail=finding.detail if finding else "",
        exact=detective.exact,
        batch=to_device(record["batch"], trainer._training.device),
    )


class _Arrived(Exception):
    """Ends a replay without the points that an orderly end plays."""


class _Batches:
    """The recorded batches, in place of a loader of the recorded length."""

    def __init__(self, tape: dict[str, Any]) -> None:
        self.tape = tape

    def __iter__(self) -> Iterator[Any]:
        return (to_host(record["batch"]) for record in self.tape["batches"])  # a copy: callbacks may change it in place

    def __len__(self) -> int:
        if self.tape["moment"]["length"] is None:
            raise TypeError("the loader of the recorded run had no length")
        return int(self.tape["moment"]["length"])


def _play(trainer: Trainer, tape: dict[str, Any], conductor: _Conductor) -> None:
    moment = tape["moment"]
    training = dataclasses.replace(
        trainer._training, clock=Clock(), history=History(), best=None, store={}, launched=True, experiment=None
    )
    callbacks = [conductor, *(callback for callback in trainer.callbacks if plays_again(callback))]
    run = Run(training, lambda run: Plan(callbacks, run))
    move_to(training.device, training.module, training.criterion, training.optimizers)
    restore(run, moment)  # once for those who look at before_run, and once more when all of them have begun
    run.end_at(moment["num_epochs"], moment["last_step"])
    run.epoch = run.clock.epochs
    run.train_loader = _Batches(tape)
    try:
        with torch.enable_grad(), conductor.listening(run), run:
            for _ in run.epochs():
                for _ in run.train():
                    run.train_step()
                raise _Arrived
    except _Arrived:
        pass
    trainer.clock.load_state_dict(training.clock.state_dict())


class _Conductor(Callback):
    """Puts the run back to the recorded moment, gives each batch its random numbers, and ends before ``stop_at``."""

    order = -1000
    stages = frozenset({"train"})
    passive = True

    def __init__(self, tape: dict[str, Any], stop_at: int | None = None) -> None:
        self.tape, self.stop_at = tape, stop_at
        self.index = -1

    def listening(self, run: Run) -> AbstractContextManager[None]:
        return nullcontext()

    def after_fetch(self, run: Run) -> None:
        if not hasattr(run, "batch"):  # the end of the loader
            return
        self.index += 1
        record = self.tape["batches"][self.index]
        if self.index == 0:
            restore(run, self.tape["moment"], run.callbacks)
            set_rng_state(self.tape["moment"]["rng"], run.device)
        renumber_batch(run, record["batch_idx"])
        if record["rng"] is not None:
            set_rng_state(record["rng"], run.device)
        if self.index == self.stop_at:
            raise _Arrived


class _Detective(_Conductor):
    """Looks at every step, and ends at the first that is not in order. Its first unusual value is the culprit."""

    search: Search

    def __init__(self, tape: dict[str, Any]) -> None:
        super().__init__(tape)
        self.finding: Finding | None = None
        self.exact = True
        self._loss = self._gradients = False

    def listening(self, run: Run) -> AbstractContextManager[None]:
        self.search = Search(run.module)
        return self.search.hooked()

    def before_train_iter(self, run: Run) -> None:
        self._loss = self._gradients = False
        self.search.gradients = run.scaler is None  # scaled ones may be infinite in good order
        self.search.begin()
        self.search.look("batch", "batch", run.batch, "the batch")
        if self.index == 0:
            self.search.look_at_parameters()

    def after_loss(self, run: Run) -> None:
        who = "criterion" if run.criterion is not None else run.main.name
        self._loss = self.search.look("loss", who, run.loss.detach(), "the loss")

    def after_backward(self, run: Run) -> None:
        if run.scaler is None:
            self._gradients = self.search.look_at_gradients()

    def after_step(self, run: Run) -> None:
        if run.scaler is not None:
            self._gradients = self.search.look_at_gradients()

    def after_train_iter(self, run: Run) -> None:
        self._compare(run)
        skipped = run.skipped
        dropped = "backward" in skipped or ("step" in skipped and "zero_grad" not in skipped)
        harmed = self.search.look_at_parameters()
        is_last = self.index == len(self.tape["batches"]) - 1
        if harmed or ((self._loss or self._gradients) and (is_last or not dropped)):
            self.finding = self.search.first()
            raise _Arrived
        if is_last:
            raise _Arrived
        self.search.accept()

    def _compare(self, run: Run) -> None:
        recorded, loss = self.tape["batches"][self.index]["loss"], getattr(run, "loss", None)
        if recorded is not None:
            played = None if loss is None else float(loss.detach())
            both_nan = recorded != recorded and played != played
            self.exact = self.exact and (recorded == played or both_nan)
