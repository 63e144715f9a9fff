"""What Orca's callbacks share in one trainer: the runner, and the statistics that it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from cadenza.dialects.adapter import Player, Section
from cadenza.dialects.orca.runner import ABSENT, Runner
from cadenza.dialects.orca.table import DIALECT

if TYPE_CHECKING:
    from cadenza.run import Run


class OrcaSection(Section):
    """Holds the runner, and keeps what it shows: the statistics of an epoch, and whether to stop."""

    dialect = DIALECT
    facade_class = Runner
    facade: Runner

    def __init__(self) -> None:
        super().__init__()
        self.facade._section = self
        self.rows: list[dict[str, Any]] = []
        self._last_loss: Tensor | None = None
        self._batches = self._samples = 0
        self._restored = False

    def bookkeeping(self) -> dict[str, Player]:
        return {
            "before_run": self._begin,
            "before_train_epoch": self._begin_epoch,
            "before_iter": self._begin_iteration,
            "after_train_iter": self._end_iteration,
            "after_epoch": self._end_epoch,
        }

    def join(self, run: Run) -> None:
        super().join(run)
        self.facade._counted = run.clock.batches
        self.facade._stopping = False

    def _begin(self, run: Run) -> None:
        if not self._restored:
            self.facade._first_epoch, self.rows = run.clock.epochs, []
        self.facade._stats = None
        self._restored = False

    def _begin_epoch(self, run: Run) -> None:
        self.facade._stats = ABSENT
        self._batches, self._samples, self._last_loss = run.clock.batches, run.clock.samples, None

    def state_dict(self) -> dict[str, Any]:
        last = None if self._last_loss is None else self._last_loss.clone()
        place = {"batches": self._batches, "samples": self._samples, "last_loss": last}
        return {"epoch": self.facade._first_epoch, "rows": [dict(row) for row in self.rows], **place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.facade._first_epoch = state["epoch"]
        self.rows = [dict(row) for row in state["rows"]]
        self._batches, self._samples = state["batches"], state["samples"]
        self._last_loss = None if state["last_loss"] is None else state["last_loss"].clone()
        self._restored = not self.is_open  # the run that is about to begin keeps them

    def _begin_iteration(self, run: Run) -> None:
        facade = self.facade
        facade._target = ABSENT
        if run.stage == "train":
            facade._counted = run.clock.batches
            if facade._stopping:
                run.end_epoch()

    def _end_iteration(self, run: Run) -> None:
        loss = getattr(run, "loss", None)
        if loss is not None:
            self._last_loss = loss.detach()

    def _end_epoch(self, run: Run) -> None:
        clock = run.clock
        last = None if self._last_loss is None else self._last_loss.item()  # once an epoch
        row: dict[str, Any] = {
            "epoch": clock.epochs,
            "batch_count": clock.batches - self._batches,
            "num_samples": clock.samples - self._samples,
            "train_loss": run.metrics.get("train/loss"),
            "last_train_loss": last,
        }
        row |= {f"val_{name[4:].lower()}": run.metrics[name] for name in run.metrics if name.startswith("val/")}
        if "val_loss" in row:
            row["val_num_samples"] = number_of_samples(run.val_loader)
        self.facade._stats = row
        self.rows.append(row)
        if self.facade._stopping:
            run.stop("runner.stop")


def number_of_samples(loader: Any) -> int | None:
    """How many samples a loader gives, if it can tell."""
    dataset: Any = getattr(loader, "dataset", None)
    return len(dataset) if hasattr(dataset, "__len__") else None
