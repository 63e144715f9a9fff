"""Spans that stay open while the caller's code runs: the epoch, the pass over a loader, the iteration.

They live on a stack in the run, not in the generators that open them: a generator that is closed cannot tell
``break`` from an exception, and what it raises then is lost. So a closed generator only leaves what is held around
its spans; the ``after_*`` points are played by the next verb, or at the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.data import to_device
from cadenza.points import POINTS
from cadenza.requests import END_EPOCH, HOLD_STEP, NOTHING, OF_ITERATION, OF_PASS, SKIP_BATCH, SKIP_VALIDATION, STOP, actions_from
from cadenza.spans import Exits, blame_loader, enter, fire, leave

if TYPE_CHECKING:
    from cadenza.plan import StageScore
    from cadenza.run import Run

_FOLD = 512
_END: Any = object()


class Frame:
    """A span, or a few nested ones, that is open on the run's stack."""

    abandoned = False

    def leave(self, run: Run, error: BaseException | None) -> None:
        """Leaves what is held around the spans, innermost first. Nothing happens the second time."""
        raise NotImplementedError  # pragma: no cover

    def finish(self, run: Run) -> None:
        """Plays what an abandoned frame still owes, and takes it off the stack."""
        raise NotImplementedError  # pragma: no cover


class Epoch(Frame):
    """One epoch of ``fit``."""

    def __init__(self) -> None:
        self.exits: Exits = []
        self.trained = False

    def leave(self, run: Run, error: BaseException | None) -> None:
        leave(run, POINTS["around_epoch"], self.exits, error)

    def finish(self, run: Run) -> None:
        end_epoch(run, self)


class Pass(Frame):
    """One pass of a stage over a loader, and the iteration that is open in it."""

    def __init__(self, run: Run, stage: str, name: str | None) -> None:
        self.stage = stage
        self.name = name
        self.score: StageScore = run._plan.stages[stage]
        self.verbs: Any = self.score.verbs
        self.prefix = f"{stage}/{name}/" if name else f"{stage}/"
        self.exits: Exits = []
        self.iter_exits: Exits = []
        self.stage_iter_exits: Exits = []
        self.loader: Any = None
        self.iterator: Iterator[Any] = iter(())
        self.ahead: Any = _END
        self.exhausted = False
        self.index = -1
        self.iterating = False
        self.complete = False
        self.mean = Mean()
        self.outer = run._put_aside()
        self.flags: list[tuple[torch.nn.Module, bool]] = []

    def leave(self, run: Run, error: BaseException | None) -> None:
        try:
            leave(run, self.score.point["around_stage_iter"], self.stage_iter_exits, error)
        finally:
            try:
                leave(run, POINTS["around_iter"], self.iter_exits, error)
            finally:
                try:
                    leave(run, self.score.point["around_stage_epoch"], self.exits, error)
                finally:
                    self.restore_flags()

    def is_at_end(self) -> bool:
        """Whether the loader is known to have no further batch."""
        length = length_of(self.loader)
        return self.exhausted or (length is not None and self.index + 1 >= length)

    def restore_flags(self) -> None:
        while self.flags:
            module, training = self.flags.pop()
            module.training = training

    def finish(self, run: Run) -> None:
        self.score = run._plan.stages[self.stage]
        if self.iterating:
            end_iteration(run, self)
        end_pass(run, self)


class Outside:
    """What stands in the place of a pass when none is open."""

    iterating = False
    index = -1

    @property
    def verbs(self) -> Any:
        raise RuntimeError("this verb needs a batch: call it inside `for batch in run.train(...)` or run.validate(...)")


class SettlingVerbs:
    """The verbs of an abandoned pass: they end it first, and then act on what is open around it."""

    def __getattr__(self, verb: str) -> Any:
        def settle_first(run: Run, *args: Any) -> Any:
            settle(run)
            return getattr(run._pass.verbs, verb)(run, *args)

        return settle_first


class Mean:
    """The mean of the losses of a pass, weighted by samples, without waiting for the device."""

    __slots__ = ("losses", "total", "weight", "weights")

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.weights: list[int] = []
        self.total: Tensor | None = None
        self.weight = 0

    def add(self, loss: Any, samples: int) -> None:
        self.losses.append(loss.detach() if isinstance(loss, Tensor) else torch.as_tensor(loss))
        self.weights.append(samples)
        if len(self.losses) >= _FOLD:
            self.fold()

    def fold(self) -> None:
        if any(loss.numel() != 1 for loss in self.losses):
            raise ValueError("run.loss must be one number; give the criterion a reduction such as 'mean'")
        losses = torch.stack([loss.reshape(()) for loss in self.losses])
        exact = torch.float32 if losses.device.type == "mps" else torch.float64
        weights = torch.tensor(self.weights, dtype=exact)
        if losses.device.type != "cpu":
            weights = weights.to(losses.device, non_blocking=True)
        total = (losses.to(exact) * weights).sum()
        self.total = total if self.total is None else self.total + total
        self.weight += sum(self.weights)
        self.losses.clear()
        self.weights.clear()

    def value(self) -> Tensor | None:
        if self.losses:
            self.fold()
        return None if self.total is None or not self.weight else self.total / self.weight


# The stack ----------------------------------------------------------------------------------------------------------


def abandon(run: Run, frame: Frame) -> None:
    """The loop over ``frame`` was left by break or return: lets go of what is held in it and above it."""
    if frame not in run._open:
        return
    for above in reversed(run._open[run._open.index(frame) :]):
        above.abandoned = True
        if isinstance(above, Pass):
            above.verbs = SettlingVerbs()
        above.leave(run, run._failing)


def settle(run: Run, frame: Frame | None = None) -> None:
    """Ends abandoned frames; with ``frame``, everything above it, since the loop over ``frame`` goes on."""
    while run._open and (run._open[-1].abandoned if frame is None else run._open[-1] is not frame):
        top = run._open[-1]
        top.abandoned = False
        top.leave(run, None)
        top.finish(run)


# The epoch ----------------------------------------------------------------------------------------------------------


def epochs(run: Run) -> Iterator[int]:
    """The epochs of a fit, one after the other."""
    while run._next_epoch():
        this = Epoch()
        begin_epoch(run, this)
        try:
            yield run.epoch
        except GeneratorExit:
            abandon(run, this)
            raise
        settle(run, this)
        end_epoch(run, this)


def begin_epoch(run: Run, this: Epoch) -> None:
    run._open.append(this)
    run._epoch = this
    run._asked &= ~(OF_ITERATION | OF_PASS)
    plan = run._plan
    if plan.before_epoch:
        fire(run, POINTS["before_epoch"], plan.before_epoch)
    if plan.around_epoch:
        enter(run, POINTS["around_epoch"], plan.around_epoch, this.exits)


def end_epoch(run: Run, this: Epoch) -> None:
    """The learning rate, the best value, the end of the epoch, and what was asked for there."""
    plan = run._plan
    counts = this.trained or not (run._asked & STOP or run.clock.steps >= run._last_step)
    if counts and not run._asked & STOP and run.main.lr_every == "epoch":
        plan.adjust_lr(run)
    run._check_best()
    leave(run, POINTS["around_epoch"], this.exits, None)
    if counts:
        run.clock.epochs += 1
    if plan.after_epoch:
        fire(run, POINTS["after_epoch"], plan.after_epoch)
    run._write_row("epoch")
    run._open.pop()
    run._end_of_epoch()


# The pass over a loader ---------------------------------------------------------------------------------------------


def go_over(run: Run, stage: str, loader: Iterable[Any] | None, name: str | None) -> Iterator[Any]:
    """One pass of ``stage`` over ``loader``: yields each batch, and ends its iteration when the next is asked for."""
    settle(run)
    run._may_open(stage)
    if run._asked & STOP or (stage == "val" and run._asked & SKIP_VALIDATION):
        return
    this = Pass(run, stage, name)
    begin_pass(run, this, loader)
    try:
        while not run._asked & (END_EPOCH | STOP) and fetch(run, this):
            begin_iteration(run, this)
            if not run._asked & SKIP_BATCH:
                yield run.batch
            if run._open[-1] is not this:
                settle(run, this)
            if not end_iteration(run, this):
                break
    except GeneratorExit:
        abandon(run, this)
        raise
    end_pass(run, this)


def begin_pass(run: Run, this: Pass, loader: Iterable[Any] | None) -> None:
    run._open.append(this)
    run._pass = this
    run.stage, run.loader_name = this.stage, this.name
    run.metrics.clear_stage(this.prefix)
    if this.stage == "train":
        if not run.module.training:
            run.module.train()
    else:
        this.flags = [(module, module.training) for module in run.module.modules()]
        run.module.eval()
    score = this.score
    if score.before_stage_epoch:
        fire(run, score.point["before_stage_epoch"], score.before_stage_epoch)
    if score.around_stage_epoch:
        enter(run, score.point["around_stage_epoch"], score.around_stage_epoch, this.exits)
    this.loader = run._loader_for(this.stage) if loader is None else loader
    this.iterator = iter(this.loader)


def end_pass(run: Run, this: Pass) -> None:
    score = this.score
    if run._held and this.stage == "train" and not run._asked & STOP:
        release(run, this)  # the loader ended sooner than it said
    leave(run, score.point["around_stage_epoch"], this.exits, None)
    this.restore_flags()
    if this.stage == "train" and (this.complete or run._asked & END_EPOCH):
        run._epoch.trained = True
    mean = this.mean.value()
    if mean is not None and (this.complete or this.stage == "train" or not run._asked & STOP):
        run.log(this.prefix + "loss", mean)
    if score.after_stage_epoch:
        fire(run, score.point["after_stage_epoch"], score.after_stage_epoch)
    run._write_row("pass")
    run._open.pop()
    run._take_back(this.outer)
    if this.stage == "val" and this.complete and run._pass.iterating:
        run._check_best()


def fetch(run: Run, this: Pass) -> bool:
    """Waits for the next batch and puts it on the device; False at the end of the loader."""
    score = this.score
    if score.before_fetch:
        fire(run, POINTS["before_fetch"], score.before_fetch)
    if score.around_fetch:
        exits: Exits = []
        try:
            enter(run, POINTS["around_fetch"], score.around_fetch, exits)
            found = take(run, this)
        except BaseException as error:
            leave(run, POINTS["around_fetch"], exits, error)
            raise
        leave(run, POINTS["around_fetch"], exits, None)
    else:
        found = take(run, this)
    if score.after_fetch:
        fire(run, POINTS["after_fetch"], score.after_fetch)
    if not found:
        if this.index < 0:
            raise ValueError(f"the {this.stage} loader{f' {this.name!r}' if this.name else ''} gave no batch")
        this.complete = True
        run._asked &= ~OF_ITERATION
    return found


def take(run: Run, this: Pass) -> bool:
    """Sets ``run.batch`` to the next batch of the loader, or to the one that was looked at ahead."""
    batch, this.ahead = this.ahead, _END
    if batch is _END and not this.exhausted:
        batch = read_next(run, this)
    if batch is _END:
        return False
    this.index += 1
    run.batch = batch if run._on_cpu else to_device(batch, run.device)
    run.batch_idx = this.index
    return True


def read_next(run: Run, this: Pass) -> Any:
    try:
        batch = next(this.iterator, _END)
    except BaseException as error:
        blame_loader(run, this, error)
        raise
    this.exhausted = batch is _END
    return batch


# The iteration ------------------------------------------------------------------------------------------------------


def begin_iteration(run: Run, this: Pass) -> None:
    score = this.score
    this.iterating = True
    run.skipped = NOTHING
    run.loss_weight = 1.0
    run._forwarded = False
    if score.before_iter:
        fire(run, POINTS["before_iter"], score.before_iter)
    if score.around_iter:
        enter(run, POINTS["around_iter"], score.around_iter, this.iter_exits)
    if score.before_stage_iter:
        fire(run, score.point["before_stage_iter"], score.before_stage_iter)
    if score.around_stage_iter:
        enter(run, score.point["around_stage_iter"], score.around_stage_iter, this.stage_iter_exits)
    run._at = score.body
    if run._asked & SKIP_BATCH:
        run.skipped = actions_from(this.stage, "forward")


def end_iteration(run: Run, this: Pass) -> bool:
    """Counts the batch, plays the ends of its spans, deletes its fields; False if no further batch is wanted."""
    score = this.score
    training = this.stage == "train"
    if run._held and training and not run._asked & STOP and is_last(run, this):
        release(run, this)
    samples, tokens = run.main.count(run)
    if training:
        clock = run.clock
        clock.batches += 1
        clock.samples += samples
        clock.tokens += tokens
    try:
        loss = run.loss
    except AttributeError:
        pass  # skipped before it had a loss, or a prediction
    else:
        this.mean.add(loss, samples)
    if this.stage_iter_exits:
        leave(run, score.point["around_stage_iter"], this.stage_iter_exits, None)
    if score.after_stage_iter:
        fire(run, score.point["after_stage_iter"], score.after_stage_iter)
    if this.iter_exits:
        leave(run, POINTS["around_iter"], this.iter_exits, None)
    if score.after_iter:
        fire(run, POINTS["after_iter"], score.after_iter)
    if run._held and training and run._asked & END_EPOCH and not run._asked & STOP:
        release(run, this)  # asked only now
    this.iterating = False
    if run._row_of_iteration is not None:
        run._write_row("iter")
    run._forget()
    if run._asked or run.clock.steps >= run._last_step:
        return run._boundary(this)
    return True


def is_last(run: Run, this: Pass) -> bool:
    """Whether no further batch follows. Looks one batch ahead if the loader cannot tell its length."""
    if run._asked & END_EPOCH or run.clock.steps >= run._last_step:
        return True
    if this.is_at_end():
        return True
    if this.ahead is _END and length_of(this.loader) is None:
        this.ahead = read_next(run, this)
    return this.exhausted


def release(run: Run, this: Pass) -> None:
    """Steps on gradients that were held, since the epoch ends here."""
    run._held = False
    run._asked &= ~HOLD_STEP
    if this.iterating:
        run.skipped = run.skipped - {"step", "zero_grad"}
    this.score.verbs.step(run)


def length_of(loader: Any) -> int | None:
    """The number of batches in ``loader`` if it knows, else None."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
