"""What a training tells Ray: its metrics after each epoch, and the checkpoints that were committed meanwhile."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.callback import Callback, Order

if TYPE_CHECKING:
    from cadenza.run import Run

log = logging.getLogger("cadenza")


class RayReport(Callback):
    """Reports the metrics of each epoch of a fit to Ray Train, and with ``checkpoints`` those that were committed.

    The newest is given to Ray before the next epoch begins and when the run ends, with the metrics that were known when
    it was saved. Ray waits until all workers have reported, so it plays on all ranks, and not where a trainer is alone
    among several workers. ``launch(..., on="ray")`` adds it to every trainer.

    >>> RayReport().explain()
    "reports each epoch's metrics and the newest checkpoint to Ray"
    """

    order = Order.SAVE

    def __init__(self, *, checkpoints: bool = True) -> None:
        self.checkpoints = checkpoints
        self._begin(None)

    def _begin(self, shelf: Any) -> None:
        self._shelf = shelf
        self._given = "" if shelf is None else next(reversed(shelf.names()), "")
        self._measures: dict[int, dict[str, float]] = {}
        self._reports = False

    def explain(self) -> str:
        return f"reports each epoch's metrics{' and the newest checkpoint' if self.checkpoints else ''} to Ray"

    # Points ---------------------------------------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        self._begin(shelf_of(run) if run.is_main and run.mode == "fit" else None)

    def after_epoch(self, run: Run) -> None:
        if self._plays_with_all(run):
            self._reports = True
            self._report(self._measured(run), None)

    def before_save(self, run: Run) -> None:
        self._measures[run.clock.steps] = self._measured(run)

    def before_epoch(self, run: Run) -> None:
        self._give()

    def after_error(self, run: Run) -> None:
        self._reports = False  # the others may not come by any more

    def close(self) -> None:
        self._give()
        self._begin(None)

    def _give(self) -> None:
        """Gives Ray the newest checkpoint. Every worker comes by here, though only rank 0 has one."""
        if self._reports and self.checkpoints:
            saved, metrics = self._newest()
            with held(saved) as folder:
                self._report(metrics, folder)

    def _newest(self) -> tuple[Path | None, dict[str, float]]:
        """The newest checkpoint that Ray has not got yet, and what was known when it was saved."""
        found = {} if self._shelf is None else self._shelf.metas()
        name = next(reversed(found), "")
        if name in ("", self._given):
            return None, {}
        self._given = name
        metrics = self._measures.get(found[name].get("step"), {})
        self._measures = {step: kept for step, kept in self._measures.items() if step > found[name].get("step", 0)}
        return self._shelf.store.root / name, metrics

    # Ray ------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _measured(run: Run) -> dict[str, float]:
        return {**run.metrics, "epochs": float(run.clock.epochs), "steps": float(run.clock.steps)}

    @staticmethod
    def _plays_with_all(run: Run) -> bool:
        from ray import train

        return int(train.get_context().get_world_size()) == run.world_size

    @staticmethod
    def _report(metrics: dict[str, float], folder: str | None) -> None:
        from ray import train

        train.report(metrics, checkpoint=None if folder is None else train.Checkpoint.from_directory(folder))


def shelf_of(run: Run) -> Any:
    """Where the run's checkpoints lie, if that is a folder on a disk; else None."""
    for callback in run.callbacks:
        shelf: Any = getattr(callback, "shelf", None)
        if "save" in callback.owns and shelf is not None:
            found = shelf(run.experiment)
            return None if found.store.remote else found
    return None


@contextlib.contextmanager
def held(saved: Path | None) -> Iterator[str | None]:
    """A folder with the checkpoint in it, which stays whole while Ray copies it, whatever is deleted meanwhile."""
    if saved is None or not saved.is_dir():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=".for-ray-", dir=_beside(saved)) as folder:
        yield folder if _linked(saved, Path(folder)) else None


def _linked(saved: Path, folder: Path) -> bool:
    try:
        shutil.copytree(saved, folder / saved.name, copy_function=_link)
    except (FileNotFoundError, shutil.Error):
        log.info("%s is gone already; the next checkpoint will be given to Ray", saved)
        return False
    return True


def _beside(saved: Path) -> Path | None:
    """A place on the same disk, where links cost nothing."""
    return saved.parents[1] if saved.parents[1].is_dir() and os.access(saved.parents[1], os.W_OK) else None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
