"""Stopping early to try things."""

from __future__ import annotations

from typing import Any

from cadenza.dialects.fastai.callback import Callback

__all__ = ["StopAfterNBatches"]


class StopAfterNBatches(Callback):
    """Ends the training after so many batches, without validation."""

    def __init__(self, n_batches: int = 2) -> None:
        self.stop, self.n_batches = False, n_batches - 1

    def on_batch_end(self, iteration: int, **kwargs: Any) -> Any:
        ends = iteration == self.n_batches
        return dict.fromkeys(("stop_epoch", "stop_training", "skip_validate"), True) if ends else None
