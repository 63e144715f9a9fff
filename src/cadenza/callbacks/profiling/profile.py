"""A close look at a few steps with torch's profiler."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from cadenza.callback import Callback, Order
from cadenza.callbacks.faults import Faults, tolerant
from cadenza.callbacks.folders import place_for
from cadenza.clock import Duration
from cadenza.foundation.arguments import flags, whole
from cadenza.foundation.arguments import path as path_or_none
from cadenza.foundation.warn import warn
from cadenza.foundation.whole_files import whole_file, write_whole

if TYPE_CHECKING:
    from cadenza.run import Run

log = logging.getLogger("cadenza")


class Profile(Faults, Callback):
    """Profiles a window of training steps with ``torch.profiler``, once, and writes a Chrome trace and a table.

    The window begins with the first training batch once ``start`` is reached on the clock, and ends with the batch that
    completes ``steps`` optimizer steps. It is closed and written in any case: at the end of the run if that comes
    sooner, and also if the run ends with an exception. Each batch is a mark ``train batch 12``, counted
    from 1 in each epoch, in the trace, which chrome://tracing and ui.perfetto.dev open; the table beside it has the
    same name and ends in ``.txt``:

        Name                 Self CPU %   Self CPU   CPU total   # of Calls
        aten::addmm              22.73%   96.000us   106.000us           10
        train batch 11           17.41%   73.512us   422.294us            1

    ``path`` is the trace file (``.json``, or ``.json.gz`` for a packed one); else it is ``profile.json`` in the folder
    of the run's experiment, or ``runs/profile.json`` if there is none. ``shapes``, ``memory`` and ``stacks`` ask the
    profiler for more, which costs more time in the window; outside of it nothing is slower. ``rows`` is the length of
    the table. With ``on_error="warn"`` a profiler that cannot start or write does not end the run. The names of the
    files are in ``run.store["profile"]``.

    >>> import cadenza, tempfile, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, folder = tiny_classifier(), tempfile.TemporaryDirectory()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> look = Profile(start="1 step", steps=1, path=f"{folder.name}/trace.json")
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[look], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), epochs=1)
    >>> look.trace.name, "aten::addmm" in look.table.read_text()
    ('trace.json', True)
    >>> folder.cleanup()
    """

    order = Order.REPORT
    ranks = "main"

    def __init__(
        self,
        start: str | Duration = "10 steps",
        steps: int = 5,
        *,
        path: str | os.PathLike[str] | None = None,
        shapes: bool = False,
        memory: bool = False,
        stacks: bool = False,
        rows: int = 30,
        on_error: str = "raise",
    ) -> None:
        self.start = Duration.parse(start, "start")
        for name, count in (("steps", steps), ("rows", rows)):
            whole(name, count, 1, "is")
        self.path = path_or_none(f"{self.name}: path", path)
        if self.path is not None and not os.fspath(self.path).endswith((".json", ".json.gz")):
            raise ValueError(f"path is a file that ends in .json or .json.gz, not {os.fspath(self.path)!r}")
        self._check_on_error(on_error)
        flags(shapes=shapes, memory=memory, stacks=stacks)
        self.steps, self.rows = steps, rows
        self.shapes, self.memory, self.stacks = shapes, memory, stacks
        self.done = False
        self.trace: Path | None = None
        self.table: Path | None = None
        self._window: _Window | None = None

    def explain(self) -> str:
        where = self.path or "profile.json of the run"
        return f"{self.steps} steps from {self.start} on, to {where}{', done already' if self.done else ''}"

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = bool(state["done"])

    # Points: all of them outside the step, so that it stays closed ----------------------------------------------------

    def around_run(self, run: Run) -> Iterator[None]:
        try:
            yield
        finally:
            try:
                self._finish(run)
            except Exception as error:
                if self.on_error == "raise":
                    raise
                warn(f"{self.name} wrote nothing: {type(error).__name__}: {error}")

    @tolerant
    def before_train_iter(self, run: Run) -> None:
        if self._window is None and not self.done and run.clock.reached(self.start):
            self._window = self._open(run)

    def around_train_iter(self, run: Run) -> AbstractContextManager[Any] | None:
        return None if self._window is None else record_function(f"train batch {run.batch_idx + 1}")

    @tolerant
    def after_train_iter(self, run: Run) -> None:
        if self._window is not None and run.clock.steps >= self._window.until:
            self._finish(run)

    def after_run(self, run: Run) -> None:
        if run.mode == "fit" and not self.done and self._window is None:
            came = f"the fit ended after {run.clock.steps} steps, and its window begins after {self.start}"
            warn(f"{self.name} wrote nothing: {came}")

    def _open(self, run: Run) -> _Window:
        on_device = run.device.type != "cpu"
        activities = torch.profiler.supported_activities() if on_device else {ProfilerActivity.CPU}  # type: ignore[no-untyped-call]
        profiler = profile(
            activities=list(activities),
            record_shapes=self.shapes,
            profile_memory=self.memory,
            with_stack=self.stacks,
            acc_events=True,  # there is one cycle only; without it some versions warn of what a second would lose
        )
        profiler.start()
        return _Window(profiler, run.clock.steps + self.steps, on_device)

    def _finish(self, run: Run) -> None:
        if self._window is None:
            return
        window, self._window, self.done = self._window, None, True
        window.profiler.stop()
        trace = place_for(run, self.path, "profile.json")
        write_trace(window.profiler, trace)
        table = trace.with_name(trace.name.removesuffix(".gz").removesuffix(".json") + ".txt")
        averages = window.profiler.key_averages(group_by_input_shape=self.shapes)
        order = "self_device_time_total" if window.on_device else "self_cpu_time_total"
        write_whole(table, str(averages.table(sort_by=order, row_limit=self.rows)).encode())
        self.trace, self.table = trace, table
        run.store["profile"] = {"trace": str(trace), "table": str(table)}
        log.info("%s: %s and %s", self.name, trace, table)


@dataclass
class _Window:
    """A profiler that is running, and the step with which it ends."""

    profiler: profile
    until: int
    on_device: bool


def write_trace(profiler: profile, path: Path) -> None:
    """Writes the trace of a profiler that was stopped; the file is there as a whole or not at all."""
    with whole_file(path) as unfinished:  # how its name ends says whether it is packed
        profiler.export_chrome_trace(str(unfinished))
