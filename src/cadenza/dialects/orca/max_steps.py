"""Training for a number of batches."""

from __future__ import annotations

from cadenza.dialects.orca.callback import Callback
from cadenza.dialects.orca.runner import Runner

__all__ = ["MaxstepsCallback"]


class MaxstepsCallback(Callback):
    """Trains for ``max_step`` batches of this fit, over as many epochs as that takes. In the original a second fit
    counted those of the first."""

    def __init__(self, max_step: int) -> None:
        if max_step < 1:
            raise ValueError(f"orca: max_step must be at least 1, not {max_step!r}")
        self.max_step = max_step

    def before_run(self, runner: Runner) -> None:
        self.first = runner.global_step
        runner.num_epochs = -(-self.max_step // len(runner.train_loader))

    def after_train_iter(self, runner: Runner) -> None:
        if runner.global_step - self.first >= self.max_step:
            runner.stop = True
