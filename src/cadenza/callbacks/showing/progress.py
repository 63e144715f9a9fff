"""What a training tells the person who watches it."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from torch import Tensor

from cadenza.callback import Callback, Order
from cadenza.callbacks.showing.displays import Display, Standing, check, choose, open_display
from cadenza.data import length_of
from cadenza.foundation.arguments import stream as stream_or_none
from cadenza.foundation.text_table import number
from cadenza.foundation.warn import warn
from cadenza.history import Row, read

if TYPE_CHECKING:
    from cadenza.run import Run

log = logging.getLogger("cadenza")
_PER_SECOND = 10
"""At most so many updates, and so waits for the device, in any second."""
_RECENT = 10.0
"""The rate is that of the last so many seconds."""


class Progress(Callback):
    """Shows how far a run has come, and at the end of each epoch its metrics.

    A live line in a terminal (if rich is installed) or in a notebook; elsewhere a line an epoch, and one each half
    minute within it. It updates at most ten times a second, and only then reads the loss from the device.

    ![A line for each epoch, and a bar for the one that runs](images/progress.svg)

    ``display`` is "auto", "rich" (the live line), "plain" (lines), "notebook", or None for nothing. ``stream`` is where
    it is written, standard output by default. A stream that fails, or is closed, is warned of once and given up; the
    run goes on.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[Progress("plain")], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), epochs=1)  # doctest: +ELLIPSIS
    epoch 1/1  train/loss ...  ... s
    """

    order = Order.REPORT
    ranks = "main"

    def __init__(self, display: str | None = "auto", *, stream: TextIO | None = None) -> None:
        check(display)
        stream_or_none("stream", stream)
        self.display = display
        self.stream = stream
        self._screen: Display | None = None
        self._passes: list[_Pass] = []
        self._waiting: list[_Line] = []
        self._due = math.inf
        self._updates: deque[float] = deque(maxlen=_PER_SECOND)
        self._began = self._epoch_began = 0.0
        self._batches = 0
        self._warned = False

    def explain(self) -> str:
        kind, why = choose(self.display, self.stream)
        return f"{_IN_WORDS[kind]}, {why}"

    # Points: all of them outside the step, so that it stays closed ----------------------------------------------------

    def after_register(self, run: Run) -> None:
        self._passes.clear()
        self._waiting.clear()
        self._batches, self._began = 0, monotonic()
        self._epoch_began = monotonic()
        self._open()

    def before_epoch(self, run: Run) -> None:
        self._epoch_began = monotonic()

    def _begin_pass(self, run: Run) -> None:
        self._passes.append(_Pass(_stage(run), monotonic()))
        self.after_iter(run)

    before_train_epoch = before_val_epoch = before_test_epoch = before_pred_epoch = _begin_pass

    def after_iter(self, run: Run) -> None:
        if monotonic() >= self._due:
            self._update(run)

    def _end_pass(self, run: Run) -> None:
        self._batches += run.batches_seen
        if self._passes:
            ended = self._passes.pop()
            if self._passes:
                self._passes[-1].pause(monotonic() - ended.began)

    after_train_epoch = after_val_epoch = after_test_epoch = after_pred_epoch = _end_pass

    def after_epoch(self, run: Run) -> None:
        if self._screen is not None:
            rows = run.rows_of_epoch  # of a resumed epoch those before the interruption too
            metrics = _shown(rows, run.metrics.raw())
            self._tell(_Line(_epoch(run), metrics, f"{monotonic() - self._epoch_began:.1f} s"))

    def after_run(self, run: Run) -> None:
        if self._screen is None:
            return
        if run.mode != "fit":
            seconds = f"{monotonic() - self._began:.1f} s"
            self._waiting.append(_Line(f"{run.mode}  {self._batches} batches", dict(run.metrics.raw()), seconds))
        if run.stop_reason is not None:
            self._waiting.append(_Line(f"stopped: {run.stop_reason}"))
        self._flush()

    def close(self) -> None:
        try:
            self._flush()
        except Exception as error:  # after a failure of the device its values cannot be read any more
            warn(f"Progress could not read the metrics of the last epochs: {error}")
        finally:
            self._play(lambda screen: screen.close())
            self._screen, self._due = None, math.inf

    # What is shown --------------------------------------------------------------------------------------------------

    def _update(self, run: Run) -> None:
        """Shows the lines that had to wait, or else how far this pass has come."""
        if monotonic() < self._free():
            self._due = self._free()
            return
        if self._waiting:
            self._flush()
            return
        done = run.batches_seen
        if not self._passes:  # it was added in the middle of a pass
            self._passes.append(_Pass(_stage(run), monotonic(), done))
        standing = self._passes[-1].standing(run, done)
        self._play(lambda screen: screen.show(standing))

    def _tell(self, line: _Line) -> None:
        """Shows ``line`` at once, or together with the next ones if this second has had its updates."""
        self._waiting.append(line)
        if monotonic() >= self._free():
            self._flush()
        else:
            self._due = min(self._due, self._free())

    def _free(self) -> float:
        """When the next update may come."""
        return self._updates[0] + 1.0 if len(self._updates) == _PER_SECOND else -math.inf

    def _flush(self) -> None:
        lines, self._waiting = self._waiting, []
        values = iter(read(value for line in lines for value in line.metrics.values()))  # the one wait for all of them
        texts = [line.text([next(values) for _ in line.metrics]) for line in lines]
        if texts:
            self._play(lambda screen: screen.lines(texts))

    # The display ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        kind, why = choose(self.display, self.stream)
        self._screen, self._due = None, math.inf
        if kind is None:
            if self.display is not None:
                self._warn(why)
            return
        try:
            self._screen = open_display(kind, self.stream)
        except Exception as error:
            self._warn(repr(error))
        else:
            self._due = monotonic() + self._screen.interval

    def _play(self, act: Callable[[Display], object]) -> None:
        """Uses the display. One that fails, for whatever reason, is given up: the training is worth more."""
        if self._screen is None:
            return
        try:
            act(self._screen)
        except Exception as error:
            self._give_up(error)
        else:
            self._updates.append(monotonic())
            self._due = monotonic() + self._screen.interval

    def _give_up(self, error: Exception) -> None:
        screen, self._screen, self._due = self._screen, None, math.inf
        self._waiting.clear()
        try:
            if screen is not None:
                screen.close()
        except Exception as further:
            log.debug("Progress could not close its display: %r", further)
        self._warn(repr(error))

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            warn(f"Progress shows nothing more, the run goes on: {why}")


@dataclass
class _Line:
    """A line that stays. Its values are still where they were made."""

    head: str
    metrics: dict[str, float | Tensor] = field(default_factory=dict)
    tail: str = ""

    def text(self, values: list[float]) -> str:
        pairs = (f"{name} {number(value)}" for name, value in zip(self.metrics, values, strict=True))
        return "  ".join(part for part in (self.head, *pairs, self.tail) if part)


class _Pass:
    """What is known of an open pass."""

    def __init__(self, stage: str, now: float, done: int = 0) -> None:
        self.stage = stage
        self.began = now
        self.loss: float | None = None
        self.marks: deque[tuple[float, int]] = deque([(now, done)])

    def pause(self, seconds: float) -> None:
        """Leaves out the time of a pass that was played inside this one."""
        self.began += seconds
        self.marks = deque((when + seconds, done) for when, done in self.marks)

    def rate(self, now: float, done: int) -> float | None:
        """Batches a second since the youngest mark that is old enough, or else since the oldest there is."""
        while len(self.marks) > 1 and now - self.marks[1][0] >= _RECENT:
            self.marks.popleft()
        since, before = self.marks[0]
        self.marks.append((now, done))
        return (done - before) / (now - since) if now > since and done > before else None

    def standing(self, run: Run, done: int) -> Standing:
        loss = _loss(run)
        self.loss = self.loss if loss is None else loss
        total = length_of(run.loader)
        return Standing(_head(run), self.stage, done, total, self.rate(monotonic(), done), self.loss)


def _loss(run: Run) -> float | None:
    """The loss of this batch; None if it was skipped, or predicts. This waits for the device."""
    try:
        loss = run.loss
    except AttributeError:
        return None
    if isinstance(loss, Tensor):
        return float(loss.detach()) if loss.numel() == 1 else None
    return float(loss)


def _shown(rows: Sequence[Row], latest: Mapping[str, float | Tensor]) -> dict[str, float | Tensor]:
    """What the line of an epoch shows. Values of many layers, such as ``train/gradients/0/norm``, would flood it."""
    inside = {name for row in rows if row.at.get("stage") == "train" for name in row.raw() if name.count("/") > 2}
    logged = dict.fromkeys(name for row in rows if row.at.get("stage") != "train" for name in row.raw())
    return {name: latest[name] for name in logged if name in latest and name not in inside}


def _stage(run: Run) -> str:
    return f"{run.stage} {run.loader_name}" if run.loader_name else f"{run.stage}"


def _head(run: Run) -> str:
    """``epoch 3/10``, or ``step 120/500`` if the fit counts steps; nothing outside of fit."""
    if run.mode != "fit":
        return ""
    if run.num_steps is not None:
        return f"step {_of(run.clock.steps, run.num_steps)}"
    return f"epoch {_of(run.epoch + 1, run.num_epochs)}"


def _epoch(run: Run) -> str:
    """The head of the line that an epoch leaves."""
    head = f"epoch {_of(run.epoch + 1, run.num_epochs)}"
    if run.num_epochs is None:
        head += f", {_head(run)}"
    return head if run.clock.epochs > run.epoch else f"{head}, not finished"


def _of(count: int, total: int | None) -> str:
    return str(count) if total is None else f"{count:>{len(str(total))}}/{total}"


_IN_WORDS = {"rich": "live line", "notebook": "live line", "plain": "plain lines", None: "shows nothing"}
