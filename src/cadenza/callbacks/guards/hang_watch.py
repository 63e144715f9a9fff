"""Noticing a run that stands still, and saying where."""

from __future__ import annotations

import ctypes
import io
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from cadenza.callback import Callback, Order
from cadenza.clock import Duration
from cadenza.engine.dispatch import place
from cadenza.foundation.arguments import one_of, path
from cadenza.foundation.arguments import stream as stream_or_none

if TYPE_CHECKING:
    from cadenza.run import Run

log = logging.getLogger("cadenza")
EXIT_CODE = 124
"""What a process ends with that ``action="kill"`` ended; the same as that of the command ``timeout``."""


class RunHung(RuntimeError):
    """Raised in the thread of a run that stood still, if that was asked for."""

    def __init__(self, message: str = "the run stood still; the report of HangWatch says where") -> None:
        super().__init__(message)


class HangWatch(Callback):
    """Says where a run stands if it has not moved for a while, with the stacks of all threads.

    A thread beside the run looks at the place in the score and at the clock; the run itself does nothing for it, so it
    costs the batches nothing. If neither has changed for ``after``, a report is written: the last point that was
    passed, epoch and batch, and what each thread is doing. If nobody plays inside the step, no point is passed
    there, and the report says "in the training step after before_train_iter"; the stacks say the rest. One report
    is written for each standstill, and one more each time that it has lasted twice as long.

    ``after`` is a time such as "10 minutes"; choose it longer than the longest wait that is in order (a checkpoint, the
    first batch of a slow loader). The report goes to ``file``, to whose end it is added, or else to ``stream``
    (standard error); the logger ``cadenza`` gets its first line. ``action`` says what happens besides: "report"
    nothing; "raise" raises ``RunHung`` in the run's thread as soon as Python code runs there again, which does not
    reach a call that never returns; "kill" ends the process with exit code 124, so that a launcher can start it anew.
    A call that keeps all other Python threads from running keeps this one from running as well.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> watch = HangWatch(after="10 minutes")
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[watch], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), epochs=1)
    >>> watch.reports
    0
    """

    order = Order.REPORT

    def __init__(
        self,
        after: str | Duration = "10 minutes",
        *,
        action: str = "report",
        stream: TextIO | None = None,
        file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.after = Duration.interval(after, "after")
        if self.after.unit != "seconds":
            raise ValueError(f'after is a time such as "10 minutes", not {self.after}')
        one_of("action", action, ("report", "raise", "kill"))
        stream_or_none("stream", stream)
        path("file", file)
        if stream is not None and file is not None:
            raise ValueError("give stream or file, not both")
        self.action, self.stream = action, stream
        self.file = None if file is None else Path(file)
        self.reports = 0

    def explain(self) -> str:
        where = self.file or ("the given stream" if self.stream is not None else "standard error")
        more = {"report": "", "raise": ", then raises", "kill": ", then ends the process"}[self.action]
        return f"after {self.after} without movement reports to {where}{more}"

    def around_run(self, run: Run) -> Iterator[None]:
        over, lock = threading.Event(), threading.Lock()
        name = f"{self.name} of the run"
        thread = threading.Thread(target=self._watch, args=(run, over, lock), name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            with lock:  # so that nothing is raised in this thread once the run is over
                over.set()
            thread.join(timeout=10)  # it only sleeps or writes; a stream that blocks must not hold up the run

    # In the other thread --------------------------------------------------------------------------------------------

    def _watch(self, run: Run, over: threading.Event, lock: threading.Lock) -> None:
        seen, since, patience = standing(run), monotonic(), self.after.amount
        while not over.wait(min(1.0, self.after.amount / 4)):
            now = standing(run)
            if now != seen:
                seen, since, patience = now, monotonic(), self.after.amount
            elif monotonic() - since >= patience:
                self._report(run, monotonic() - since)
                with lock:
                    if not over.is_set():
                        self._act(run)
                patience *= 2

    def _report(self, run: Run, seconds: float) -> None:
        first = f"{self.name}: the run has stood still for {seconds:.1f} seconds {place(run)}"
        try:
            log.error("%s", first)
            self._write(f"{first}\n{where_others_stand(run)}{stacks(run.thread)}")
        except Exception as error:  # a full disk must not end the watch
            log.warning("%s could not write its report: %r", self.name, error)
        self.reports += 1

    def _act(self, run: Run) -> None:
        if self.action == "kill":
            os._exit(EXIT_CODE)
        elif self.action == "raise":
            _raise_in(run.thread)

    def _write(self, report: str) -> None:
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(report)
            return
        stream = self.stream or sys.stderr
        if stream is not None:  # there is none under pythonw
            stream.write(report)
            stream.flush()


def standing(run: Run) -> tuple[Any, ...]:
    """Everything that changes when a run moves."""
    clock = run.clock
    return (
        run.point,
        run.stage,
        run.loader_name,
        run.epoch,
        run.open_stages,
        run.batches_seen,
        clock.batches,
        clock.steps,
    )


def where_others_stand(run: Run) -> str:
    """A line for each process of those that train together; one that does not answer does not even run Python."""
    known, size = run.processes.places(), run.processes.size
    return "".join(f"rank {rank}: {known.get(rank, 'does not answer')}\n" for rank in range(size) if size > 1)


def stacks(first: int | None = None) -> str:
    """What every thread is doing, as text; the thread ``first`` comes first and this one is left out.

    >>> "Thread" in stacks() or stacks() == ""
    True
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    out = io.StringIO()
    for ident in sorted(frames, key=lambda ident: ident != first):
        if ident != threading.get_ident():
            out.write(f"Thread {names.get(ident, ident)}{' (of the run)' if ident == first else ''}:\n")
            out.write("".join(traceback.format_stack(frames[ident])))
    return out.getvalue()


def _raise_in(thread: int) -> None:
    """Lets ``RunHung`` be raised in another thread when it next runs Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(RunHung))
