"""What Orca's callbacks share in one trainer: the runner, and the statistics that it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from cadenza.dialects.adapter import Player, Section
from cadenza.dialects.orca.runner import Runner, Timers
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
        self._timed: dict[str, Player] = {}
        self._last_loss: Tensor | None = None
        self._batches = self._samples = 0
        self._restored = False

    def bookkeeping(self) -> dict[str, Player]:
        return {
            **self._timed,
            "before_run": self._begin,
            "before_train_epoch": self._begin_epoch,
            "before_iter": self._begin_iteration,
            "after_train_iter": self._end_iteration,
            "after_val_iter": self._keep_target,
            "after_val_epoch": self._end_validation,
            "after_epoch": self._end_epoch,
        }

    def time(self, profile: bool) -> Timers:
        """New timers; with ``profile`` they measure passes, forward and backward."""
        timers = self.facade.timers = Timers()
        self._timed = {} if not profile else {
            "around_train_epoch": lambda run: timers.record("train_epoch"),
            "around_val_epoch": lambda run: timers.record("validation"),
            "around_forward": lambda run: timers.record("fwd" if run.stage == "train" else "eval_fwd"),
            "around_backward": lambda run: timers.record("bwd"),
        }  # fmt: skip
        return timers

    def join(self, run: Run) -> None:
        super().join(run)
        self.facade._counted = run.clock.batches
        self.facade._stopping = False

    def _begin(self, run: Run) -> None:
        if not self._restored:
            self.facade._first_epoch, self.rows = run.clock.epochs, []
        vars(self.facade).update(epoch=run.clock.epochs, epoch_stats=None)
        self._restored = False

    def _begin_epoch(self, run: Run) -> None:
        self.facade.epoch = run.epoch + 1
        vars(self.facade).pop("epoch_stats", None)
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
        vars(facade).pop("target", None)
        if run.stage == "train":
            facade._counted = run.clock.batches
            if facade._stopping:
                run.end_epoch()

    def _end_validation(self, run: Run) -> None:
        """As in the original, the module stays in evaluation until the next training pass."""
        vars(self.facade).pop("target", None)
        run.module.eval()

    def _end_iteration(self, run: Run) -> None:
        loss = getattr(run, "loss", None)
        if loss is not None:
            self._last_loss = loss.detach()
            self._keep_target(run)

    def _keep_target(self, run: Run) -> None:
        """That of the batch, unless a forward has set one."""
        vars(self.facade).setdefault("target", run.targets)

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
        vars(self.facade)["epoch_stats"] = row
        self.rows.append(row)
        if self.facade._stopping:
            run.stop("runner.stop")


def number_of_samples(loader: Any) -> int | None:
    """How many samples a loader gives, if it can tell."""
    dataset: Any = getattr(loader, "dataset", None)
    return len(dataset) if hasattr(dataset, "__len__") else None
