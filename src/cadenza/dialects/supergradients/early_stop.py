"""Stopping when a metric no longer improves."""

from __future__ import annotations

import logging
import math
import warnings
from typing import Any

from cadenza.callbacks.guards.early_stopping import Patience
from cadenza.dialects.supergradients.callback import PhaseCallback, PhaseContext
from cadenza.dialects.supergradients.phases import Phase, as_phase
from cadenza.dialects.supergradients.registry import register_callback
from cadenza.history import unknown_metric

__all__ = ["EarlyStop"]
log = logging.getLogger("cadenza")


@register_callback()
class EarlyStop(PhaseCallback):
    """Stops when ``monitor`` did not improve by more than ``min_delta`` in ``patience`` checks in a row, is not finite,
    or is better than ``threshold``. The phase, also by name, is VALIDATION_EPOCH_END or TRAIN_EPOCH_END.

    >>> EarlyStop("VALIDATION_EPOCH_END", "loss", patience=5).patience.patience
    5
    """

    def __init__(
        self,
        phase: Phase | str,
        monitor: str,
        mode: str = "min",
        min_delta: float = 0.0,
        patience: int = 3,
        check_finite: bool = True,
        threshold: float | None = None,
        verbose: bool = False,
        strict: bool = True,
    ) -> None:
        super().__init__(phase)
        if as_phase(phase) not in (Phase.VALIDATION_EPOCH_END, Phase.TRAIN_EPOCH_END):
            raise ValueError(f"EarlyStop looks at VALIDATION_EPOCH_END or TRAIN_EPOCH_END, not at {phase}")
        self.monitor, self.check_finite, self.threshold = monitor, check_finite, threshold
        self.verbose, self.strict = verbose, strict
        self.patience = Patience(max(patience, 1), mode=mode, min_delta=min_delta)

    def __call__(self, context: PhaseContext) -> None:
        metrics = context.metrics_dict
        if self.monitor not in metrics:
            said = f"supergradients: EarlyStop watches it, but there is {unknown_metric(self.monitor, metrics)}"
            if self.strict:
                raise RuntimeError(said)
            warnings.warn(said, stacklevel=2)
            return
        reason = self._reason(float(metrics[self.monitor]))
        if reason is not None:
            context.update_context(stop_training=True)
            if self.verbose:
                log.info("EarlyStop: %s", reason)

    def _reason(self, value: float) -> str | None:
        if self.check_finite and not math.isfinite(value):
            return f"{self.monitor} is {value}"
        if self.threshold is not None and self.patience.better(value, self.threshold):
            return f"{self.monitor} is {value:g}, better than {self.threshold:g}"
        if self.patience.spent(value):
            return f"{self.monitor} has not improved in {self.patience.bad} checks"
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.patience.best, "bad": self.patience.bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.patience.best, self.patience.bad = state["best"], int(state["bad"])
