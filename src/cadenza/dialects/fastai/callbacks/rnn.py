"""Regularisation of recurrent models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cadenza.dialects.fastai.recorder import LearnerCallback

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = ["RNNTrainer"]


class RNNTrainer(LearnerCallback):
    """For models that return (output, raw outputs, dropped outputs): keeps the first for the loss, and adds ``alpha``
    times the activations and ``beta`` times their changes in time. Resets the hidden state in each epoch."""

    def __init__(self, learn: Learner, alpha: float = 0.0, beta: float = 0.0) -> None:
        super().__init__(learn)
        self.alpha, self.beta = alpha, beta

    def on_epoch_begin(self, **kwargs: Any) -> None:
        if hasattr(self.learn._module, "reset"):
            self.learn._module.reset()

    def on_loss_begin(self, last_output: Any, **kwargs: Any) -> Any:
        self.raw_out, self.out = last_output[1], last_output[2]
        return {"last_output": last_output[0]}

    def on_backward_begin(self, last_loss: Any, **kwargs: Any) -> Any:
        if self.alpha != 0.0:
            last_loss = last_loss + self.alpha * self.out[-1].float().pow(2).mean()
        if self.beta != 0.0:
            hidden = self.raw_out[-1]
            if len(hidden) > 1:
                last_loss = last_loss + self.beta * (hidden[:, 1:] - hidden[:, :-1]).float().pow(2).mean()
        return {"last_loss": last_loss}
