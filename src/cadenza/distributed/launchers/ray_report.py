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

    A checkpoint is given to Ray before the next epoch begins, with the metrics that were known when it was saved; the
    last ones by ``finish``. Ray waits until all workers have reported, so it plays on all ranks, and not where a
    trainer is alone among several workers. ``launch(..., on="ray")`` adds it to every trainer.

    >>> RayReport().explain()
    "reports each epoch's metrics and the newest checkpoint to Ray"
    """

    order = Order.SAVE

    def __init__(self, *, checkpoints: bool = True) -> None:
        self.checkpoints = checkpoints
        self._begun: list[dict[str, float]] = []
        self._saved: tuple[Path, dict[str, float]] | None = None
        self._reports = False

    def explain(self) -> str:
        return f"reports each epoch's metrics{' and the newest checkpoint' if self.checkpoints else ''} to Ray"

    # Points ---------------------------------------------------------------------------------------------------------

    def after_epoch(self, run: Run) -> None:
        if run.mode == "fit" and self._plays_with_all(run):
            self._reports = True
            self._report(self._measured(run), None)

    def before_epoch(self, run: Run) -> None:
        self.finish()

    def before_save(self, run: Run) -> None:
        self._begun.append(self._measured(run))

    def after_save(self, run: Run) -> None:
        """Saves are committed in the order in which they began; one that failed is not told of."""
        folder, metrics = folder_of_saves(run), self._begun[-1]
        self._begun = []
        if folder is not None and run.saved is not None:
            self._saved = folder / run.saved, metrics

    def finish(self) -> None:
        """Gives Ray the newest checkpoint. Every worker comes by here, though only rank 0 has one."""
        if self._reports and self.checkpoints:
            saved, metrics = self._saved or (None, {})
            self._saved = None
            with held(saved) as folder:
                self._report(metrics, folder)

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


def folder_of_saves(run: Run) -> Path | None:
    """The folder on a disk into which the run's checkpoints go; None if there is none, or if they go elsewhere."""
    for callback in run.callbacks:
        shelf: Any = getattr(callback, "shelf", None)
        if "save" in callback.owns and shelf is not None:
            root = getattr(shelf(run.experiment).store, "root", None)
            return root if isinstance(root, Path) else None
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
