"""A learning rate that is lowered when a metric no longer improves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cadenza.callback import infer_mode
from cadenza.callbacks.guards.early_stopping import Patience
from cadenza.callbacks.guards.monitored_metric import newest_row, refuse_unknown
from cadenza.callbacks.rates.curves import COUNT, Curve
from cadenza.foundation.arguments import at_least_zero, check, is_number, whole

if TYPE_CHECKING:
    from cadenza.run import Run


class Plateau(Curve):
    """``factor ** (number of reductions)``. For a loop of your own:

    >>> plateau = Plateau(factor=0.5, patience=2, mode="min")
    >>> [plateau.check(loss) for loss in (0.9, 0.8, 0.8, 0.85)], plateau.scale
    ([False, False, False, True], 0.5)
    """

    of = COUNT
    checks_metric = True

    def __init__(
        self,
        factor: float = 0.1,
        patience: int = 10,
        *,
        mode: str = "min",
        min_delta: float = 0.0,
        rest: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        check(is_number(factor) and 0 < factor < 1, "factor must be a number between 0 and 1", factor)
        whole("patience", patience, 1)
        whole("rest", rest, 0)
        at_least_zero("min_lr", min_lr, "must be a number")
        self.factor, self.rest, self.min_lr = factor, rest, min_lr
        self.checks = Patience(patience, mode=mode, min_delta=min_delta)
        self.reductions = 0
        self.resting = 0

    @property
    def scale(self) -> float:
        return self.factor**self.reductions

    def __call__(self, x: float) -> float:
        return self.scale

    def check(self, value: float) -> bool:
        """Counts one check of the metric; True if the learning rate is lowered by it."""
        spent = self.checks.spent(value)
        if self.resting > 0:
            self.resting -= 1
            self.checks.bad = 0
            return False
        if spent:
            self.reductions += 1
            self.checks.bad, self.resting = 0, self.rest
        return spent

    def words(self) -> str:
        return f"times {self.factor:g} after {self.checks.patience} checks in a row without improvement"

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.checks.best,
            "bad": self.checks.bad,
            "reductions": self.reductions,
            "resting": self.resting,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.checks.best, self.checks.bad = state["best"], int(state["bad"])
        self.reductions, self.resting = int(state["reductions"]), int(state["resting"])


def mode_in_words(monitor: str, mode: str | None) -> str:
    better = "lower" if (mode or infer_mode(monitor)) == "min" else "higher"
    return f"{monitor}, {better} is better{'' if mode else ' (inferred from its name)'}"


def measured(run: Run, monitor: str, who: str) -> float | None:
    """The value of ``monitor`` if it was measured in this epoch, and the epoch was not cut short by a stop.

    A value of an earlier epoch is no new one. A metric that does not exist although its stage was played is an error.
    """
    if run.stop_reason is not None and run.clock.epochs == run.epoch:
        return None
    refuse_unknown(run, monitor, f"{who} follows it")
    if monitor not in run.metrics or newest_row(run, monitor) is None:
        return None
    return run.metrics[monitor]  # waits for the device: once an epoch, and the user asked for it
