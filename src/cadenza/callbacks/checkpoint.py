"""Checkpoints from which a run goes on to the last bit."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cadenza.callback import Callback, Order, infer_mode
from cadenza.clock import Cadence, Duration
from cadenza.engine.resuming import unresumable
from cadenza.foundation.arguments import check, flags, one_of, path, text, texts, whole
from cadenza.foundation.warn import warn
from cadenza.resume.collect import collect, crew_of
from cadenza.resume.signals import Preempted, Warnings, end_in_one_line

if TYPE_CHECKING:
    from cadenza.checkpoint import Outcome, Saved, Shelf, Writer
    from cadenza.foundation.locking import FolderLock
    from cadenza.run import Run

SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1")
_ADVICE = "wait until it ended, or give this run a folder of its own: Checkpoint(to=...)"


class Checkpoint(Callback):
    """Saves everything that shapes the future of a run, and lets ``fit(..., resume="auto")`` go on from it.

    It saves ``every`` so many epochs, steps or minutes, when a callback asks ``run.save()``, and at the end. Kept are
    the newest ``keep_last`` and the ``keep_best`` best by ``monitor`` (by the watched metric if it is not given). What
    is better than all before is saved in any case. Only what is saved with the weights that were measured has a value.
    They go to the folder or URL ``to``, else into the experiment's folder, else into ``checkpoints``. The copy to main
    memory is made at once, the writing in the background (not with ``background=False``).

    SIGTERM, SIGINT and SIGUSR1, by which schedulers warn, save at the next safe point and end the run with
    ``Preempted`` (exit code 143) or KeyboardInterrupt; a second Ctrl-C ends it at once. With ``grace``, the time that
    the scheduler leaves, a save that would not fit into it is not begun. If a save fails, the run goes on with a
    warning, or ends with ``on_failure="raise"``.

    >>> import cadenza, tempfile, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> folder = tempfile.mkdtemp()
    >>> def train(epochs):
    ...     model = tiny_classifier()
    ...     sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    ...     trainer = cadenza.Trainer(model, sgd, loss, callbacks=[Checkpoint(to=folder)], device="cpu")
    ...     return trainer.fit(tiny_loader(), epochs=epochs, resume="auto")
    >>> len(train(epochs=2).epochs), len(train(epochs=5).epochs)
    (2, 5)
    """

    order = Order.SAVE
    owns = frozenset({"save"})
    same_on_ranks = ("every", "monitor", "mode")

    def __init__(
        self,
        every: str | None = "1 epoch",
        *,
        keep_last: int = 2,
        keep_best: int = 1,
        monitor: str | None = None,
        mode: str | None = None,
        to: str | PathLike[str] | None = None,
        background: bool = True,
        final: bool = True,
        grace: str | None = None,
        signals: Sequence[str] = SIGNALS,
        on_failure: str = "warn",
        replace: bool = False,
    ) -> None:
        self.every = None if every is None else _interval(every)
        if self.every is not None and self.every.unit not in ("epochs", "steps", "seconds"):
            raise ValueError(f"every counts epochs, steps or time, not {self.every.unit}: {every!r}")
        whole("keep_last", keep_last, 1)
        whole("keep_best", keep_best, 0)
        flags(background=background, final=final, replace=replace)
        path("to", to, "a folder, an address such as s3://bucket/name, or None")
        if monitor is not None:
            text("monitor", monitor, 'the name of a metric, such as "val/loss", or None')
        one_of("mode", mode, ("min", "max"), or_none=True)
        one_of("on_failure", on_failure, ("warn", "raise"))
        self.keep_last, self.keep_best, self.monitor, self.mode = keep_last, keep_best, monitor, mode
        self.to, self.background, self.final, self.on_failure = to, background, final, on_failure
        self.replace = replace
        self.grace = None if grace is None else Duration.parse(grace, "grace")
        check(self.grace is None or self.grace.unit == "seconds", 'grace is a time such as "30 seconds"', grace)
        self.warnings = Warnings(texts("signals", signals, 'a list of names such as "SIGTERM"', least=0))
        self.id, self._pending, self._warned = "", False, False
        self._writer: Writer | None = None
        self._helper: Writer | None = None
        self._lock: FolderLock | None = None
        self._by_epoch: Cadence | None = None
        self._in_between: Cadence | None = None
        self._best: tuple[str, float] | None = None
        self._newest: str | None = None

    @classmethod
    def example(cls) -> Self:
        return cls("2 steps", monitor="val/loss", replace=True)

    def explain(self) -> str:
        every = "when asked" if self.every is None else f"every {self.every}"
        best = f" and {self.keep_best} best" if self.keep_best else ""
        by = f" by {self.monitor} ({self.mode or infer_mode(self.monitor)})" if self.monitor and self.keep_best else ""
        return f"{every}, keeps {self.keep_last} newest{best}{by}"

    # The shelf ------------------------------------------------------------------------------------------------------

    def shelf(self, experiment: Any = None) -> Shelf:
        """Where the checkpoints lie."""
        from cadenza.checkpoint import Shelf

        folder = self.to if self.to is not None else getattr(experiment, "checkpoints", None)
        place = str(folder if folder is not None else "checkpoints")
        if "://" not in place:
            _refuse_file(Path(place))
        return Shelf(place)

    def newest(self, experiment: Any = None, apart: Any = None) -> Saved | None:
        """The newest valid checkpoint, or None if there is none yet; ``apart`` as in ``Shelf.read``."""
        writer = self._make_writer(experiment)
        lock = self._take_lock(writer.shelf, only_if_there=True)  # what is torn will be renamed
        try:
            saved = writer.recover(apart=apart)
        finally:
            if lock is not None:
                lock.release()
        if saved is not None and saved.passed_over:
            others = ", ".join(f"{name} ({reason})" for name, reason in saved.passed_over.items())
            warn(f"{self.name} goes on from {saved.name}: newer ones cannot be used: {others}")
        return saved

    def _make_writer(self, experiment: Any) -> Writer:
        """What a remote store does not take stays under the experiment's folder, or the present one."""
        from cadenza.checkpoint import Writer

        folder: Path | None = getattr(experiment, "folder", None)
        return Writer(
            self.shelf(experiment),
            keep_last=self.keep_last,
            keep_best=self.keep_best,
            background=self.background,
            on_failure=self.on_failure,
            spill=None if folder is None else folder / "unsent-checkpoints",
        )

    def _take_lock(self, shelf: Shelf, *, only_if_there: bool = False) -> FolderLock | None:
        """Rank 0 holds it for all processes of the run. An object store has no locks: there the checkpoints are
        compared before each save."""
        from cadenza.foundation.locking import FolderLock

        root = None if shelf.store.remote else Path(str(shelf.store))
        if root is None or (only_if_there and not root.is_dir()):
            return None
        return FolderLock(root, _ADVICE).acquire()

    # When -----------------------------------------------------------------------------------------------------------

    def around_run(self, run: Run) -> Iterator[None]:
        with self.warnings.heeded():
            yield

    def before_run(self, run: Run) -> None:
        if run.mode != "fit":
            return
        self._begin_cadence(run)
        if run.is_main:
            self._begin_writer(run)

    def _begin_writer(self, run: Run) -> None:
        writer = self._make_writer(run.experiment)
        self._lock = self._take_lock(writer.shelf)
        others = self._refuse_others(writer.shelf)
        self.id = self.id or uuid.uuid4().hex
        writer.write_alone({self.id, *others}, None if self._lock is None else self._lock.check)
        self._writer, self._warned, self._newest = writer, False, None

    def _begin_cadence(self, run: Run) -> None:
        cadence = None if self.every is None else Cadence(self.every, run.clock)
        by_epoch = self.every is not None and self.every.unit == "epochs"
        self._by_epoch, self._in_between = (cadence, None) if by_epoch else (None, cadence)

    def _refuse_others(self, shelf: Shelf) -> set[str | None]:
        """A new run does not write among the checkpoints of another. Returns the runs whose place it takes."""
        others = {meta.get("run") for meta in shelf.metas().values()} - {self.id}
        if others and not self.replace:
            raise FileExistsError(
                f"{shelf.store} holds the checkpoints of another run: go on with it by fit(..., resume='auto'), give "
                "another folder with Checkpoint(to=...), or let this run take its place with Checkpoint(replace=True)"
            )
        return others

    def after_iter(self, run: Run) -> None:
        if self.warnings.came:
            self._preempt(run)
        elif run.stage == "train" and self._is_due(run, self._in_between):
            run.save()
        if self._pending and self._writer is not None and not self._writer.busy:
            self._tell(run, self._writer.poll())

    def _tell(self, run: Run, outcomes: Iterable[Outcome]) -> None:
        self._pending = False
        done = list(outcomes)
        self._warn(outcome.problem for outcome in done if outcome.problem is not None)
        saved = [outcome.name for outcome in done if outcome.name is not None]
        self._newest = saved[-1] if saved else self._newest
        run.tell_saved(saved)

    def _warn(self, problems: Iterable[str]) -> None:
        """Tells of the first save of a run that failed; each was logged when it did."""
        for problem in problems:
            if not self._warned:
                self._warned = True
                warn(problem)

    def after_epoch(self, run: Run) -> None:
        due = self._is_due(run, self._by_epoch)
        if run.is_paused:  # in mid-epoch, perhaps: it was saved there
            return
        warned = self.warnings.came and run.stop_reason is None  # one that stops is saved when it has ended
        if warned or (due and not (self.final and run.is_last_epoch)):
            run.save()

    def _is_due(self, run: Run, cadence: Cadence | None) -> bool:
        is_best = self._is_best(run)
        return (cadence is not None and cadence.due()) or is_best

    def after_run(self, run: Run) -> None:
        """The last safe point: a signal that came after all others is heeded here."""
        if run.mode == "fit" and not run.is_paused:  # a paused run was saved where it stands
            if self.final or self.warnings.came:
                run.save()
        elif self.warnings.came:
            raise self.warnings.error(f"{self.warnings.name} came at the end of the run")

    def _preempt(self, run: Run) -> None:
        """In training the save comes first. An evaluation is broken off; what is saved is how it began."""
        if run.mode == "fit" and (run.stage == "train" or run.world_size > 1):
            run.save()
        elif run.mode != "fit" or not run.is_nested:
            raise self.warnings.error(f"{self.warnings.name} came in {run.stage}")

    def after_error(self, run: Run) -> None:
        broken_off = isinstance(run.error, Preempted | KeyboardInterrupt) and self.warnings.came
        alone = run.world_size == 1  # many processes end such an evaluation together, and save after it
        if alone and broken_off and run.mode == "fit" and run.stage in ("val", "test") and not run.is_nested:
            self._write(run)
        if isinstance(run.error, KeyboardInterrupt) and run.error.args and self._writer is not None and self._newest:
            place = f"{self._writer.shelf.store} ({self._newest})"
            goes_on = 'To continue it, call fit(..., resume="auto")'
            end_in_one_line(run.error, f"interrupted; the run is saved in {place}. {goes_on}")

    # Saving ---------------------------------------------------------------------------------------------------------

    def save(self, run: Run) -> None:
        """Called by the loop at a safe point, in all processes; rank 0 writes."""
        with self.warnings.heeded(anew=False) if run.is_ending else nullcontext():  # the run holds nothing any more
            self._write(run)
        came = run.from_any_rank(self.warnings.name)
        if came is not None:
            self.warnings.name = came
            error = self.warnings.error(f"{came} came; the run is saved")
            error.agreed = True  # type: ignore[attr-defined]  # every process raises it, so it is no news
            raise error

    def _write(self, run: Run) -> None:
        if run.is_main and self._writer is None:
            raise RuntimeError("Checkpoint saves while a fit runs")
        if not run.from_main(self._writer is None or self._is_time_for(self._writer)):
            return
        self._say_if_not_resumable(run)
        state, crew = collect(run), crew_of(run)
        if crew is not None:
            self._save_together(run, crew, state)
        elif self._writer is not None:
            name, meta = self._noted(run)
            self._writer.save(name, state, meta)
        self._await(run)

    def _say_if_not_resumable(self, run: Run) -> None:
        """At the first save, not at the resume in a week. If a signal ended the run, its weights are saved in any
        case."""
        for reason in unresumable(run):
            if not self.warnings.came:
                raise TypeError(f"{self.name} cannot save a run that could not be resumed. {reason}")
            if not self._warned:
                self._warned = True
                warn(f"the run cannot be resumed from this save, though its weights can be loaded. {reason}")

    def _is_time_for(self, writer: Writer) -> bool:
        """Whether a save fits into what is left of the grace time."""
        if self.warnings.came and self.grace is not None:
            left, needed = self.grace.amount - self.warnings.seconds(), writer.estimate()
            if needed is not None and needed > left:
                warn(f"a save takes about {needed:.1f} s, and {left:.1f} s are left: the last one stands")
                return False
        return True

    def _save_together(self, run: Run, crew: Any, state: dict[str, Any]) -> None:
        """Each process stores its part of what is spread over them."""
        from cadenza.checkpoint import Shelf, Writer
        from cadenza.checkpoint.multi_process import save_together

        def helper(place: str) -> Writer:
            self._helper = self._helper or Writer(Shelf(place), background=self.background)
            return self._helper

        save_together(crew, run.from_main, state, self._noted(run), self._writer, helper)

    def _noted(self, run: Run) -> tuple[str, dict[str, Any]]:
        """The name of a checkpoint that is made now, and what is noted about it."""
        from cadenza.checkpoint.retention import name_of

        monitor, mode, value = self._measured(run)
        meta = {"run": self.id, "epoch": run.clock.epochs, "step": run.clock.steps, "batch": run.clock.batches}
        return name_of(run.clock.epochs, run.clock.steps, monitor, value), {
            **meta,
            "monitor": monitor,
            "mode": mode,
            "value": value,
        }

    def _await(self, run: Run) -> None:
        """Before the run ends the checkpoint is waited for; else it is told of when it is there."""
        self._pending = self._writer is not None
        if self._writer is not None and (self.warnings.came or run.is_ending):
            self._tell(run, self._writer.wait())

    def _measured(self, run: Run) -> tuple[str, str, float | None]:
        watch = run.watch
        monitor = self.monitor or (watch.name if watch is not None else "")
        mode = self.mode or (infer_mode(monitor) if self.monitor or watch is None else watch.mode)
        return monitor, mode, run.metrics[monitor] if run.is_measured_now(monitor) else None

    def _is_best(self, run: Run) -> bool:
        """Whether the metric was just measured and is better than ever before, so that these weights are kept."""
        monitor, mode, value = self._measured(run) if self.keep_best else ("", "", None)
        if value is None or math.isnan(value):
            return False
        signed = -value if mode == "max" else value
        is_best = self._best is None or self._best[0] != monitor or signed < self._best[1]
        self._best = (monitor, signed) if is_best else self._best
        return is_best

    def close(self) -> None:
        closing, self._writer, self._helper = (self._helper, self._writer), None, None
        lock, self._lock = self._lock, None
        try:
            for writer in filter(None, closing):
                writer.close(send=not self.warnings.came)  # who was told to end has no time for a store that is down
                self._warn(writer.problems)
        finally:
            if lock is not None:
                lock.release()

    # State ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"run": self.id, "best": self._best} if self.id else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.id = state.get("run", "")
        best = state.get("best")
        self._best = None if best is None else (str(best[0]), float(best[1]))


def _refuse_file(place: Path) -> None:
    file = next((one for one in (place, *place.parents) if one.is_file()), None)
    if file is not None:
        raise NotADirectoryError(
            f"Checkpoint(to={str(place)!r}) needs a folder, and {file} is a file. Give a folder of its own; weights "
            "alone are written to a file by cadenza.checkpoint.save_weights"
        )


def _interval(every: str) -> Duration:
    try:
        return Duration.interval(every, "every")
    except ValueError as error:
        if not str(every)[:1].isdigit():
            raise ValueError(f"{error}; a folder is given as to={every!r}") from None
        raise
