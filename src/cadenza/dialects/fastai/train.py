"""What ``fastai.train`` had besides the methods of the Learner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from cadenza.dialects.fastai.recorder import LearnerCallback
from cadenza.dialects.fastai.torch_core import set_bn_eval

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = ["AccumulateScheduler", "BnFreeze", "GradientClipping", "ShowGraph"]


class GradientClipping(LearnerCallback):
    """Clips the norm of the gradients after each backward."""

    def __init__(self, learn: Learner, clip: float = 0.0) -> None:
        super().__init__(learn)
        self.clip = clip

    def on_backward_end(self, **kwargs: Any) -> None:
        if self.clip:
            nn.utils.clip_grad_norm_(self.learn._module.parameters(), self.clip)


class AccumulateScheduler(LearnerCallback):
    """Steps after every ``n_step`` training batches, with gradients divided by the samples in them, for a loss that
    sums. What is left at the end of an epoch is stepped, or dropped. In the original validation batches counted too,
    and an epoch without rest made a step on nothing."""

    def __init__(self, learn: Learner, n_step: int = 1, drop_last: bool = False) -> None:
        super().__init__(learn)
        if getattr(learn.loss_func, "reduction", "sum") != "sum":
            raise ValueError('fastai: AccumulateScheduler divides by samples; use a loss with reduction="sum"')
        self.n_step, self.drop_last = n_step, drop_last

    def on_epoch_begin(self, **kwargs: Any) -> None:
        self.acc_samples = self.acc_batches = 0

    def on_batch_begin(self, last_input: Any, last_target: Any, train: bool, **kwargs: Any) -> None:
        if train:
            self.acc_samples += len(last_input)
            self.acc_batches += 1

    def on_backward_end(self, **kwargs: Any) -> Any:
        if self.acc_batches % self.n_step != 0:
            return {"skip_step": True, "skip_zero": True}
        self._divide()
        return None

    def on_epoch_end(self, **kwargs: Any) -> None:
        if self.acc_samples and not self.drop_last:
            self._divide()
            self.learn.opt.step()
        self.learn.opt.zero_grad()

    def _divide(self) -> None:
        for parameter in self.learn._module.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(self.acc_samples)
        self.acc_samples = 0


class BnFreeze(LearnerCallback):
    """Keeps batch-norm statistics as they are, where their weights are not trained."""

    def on_epoch_begin(self, **kwargs: Any) -> None:
        set_bn_eval(self.learn._module)


class ShowGraph(LearnerCallback):
    """Keeps a picture of the losses in ``figure``, made anew after each epoch."""

    def on_epoch_end(self, **kwargs: Any) -> None:
        self.figure = self.learn.recorder.plot_losses()
