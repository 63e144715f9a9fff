"""fastai's sweep over learning rates."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from cadenza.dialects.fastai.callback import Scheduler, annealing_exp
from cadenza.dialects.fastai.recorder import LearnerCallback
from cadenza.foundation.kept_state import KeptState

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = ["LRFinder"]


class LRFinder(LearnerCallback):
    """Raises the learning rate after each batch by equal factors, without validation, until the smoothed loss is four
    times its best or NaN; then weights and optimizer are as before. It waits for the device in each batch."""

    def __init__(
        self, learn: Learner, start_lr: float = 1e-7, end_lr: float = 10, num_it: int = 100, stop_div: bool = True
    ) -> None:
        super().__init__(learn)
        self.stop_div = stop_div
        self.sched = Scheduler((start_lr, end_lr), num_it, annealing_exp)

    def on_train_begin(self, pbar: Any, **kwargs: Any) -> Any:
        optimizer = self.learn.opt
        self._states = (self.learn._module.state_dict(), optimizer.state_dict())
        self._kept = KeptState(torch.device("cpu"))
        self._kept.keep_tree(self._states)
        optimizer.lr = self.sched.start
        self.best = math.inf
        return {"skip_validate": True}

    def on_batch_end(self, iteration: int, smooth_loss: Any, **kwargs: Any) -> Any:
        loss = float(smooth_loss)
        self.best = loss if iteration == 0 else min(loss, self.best)
        self.learn.opt.lr = self.sched.step()
        if self.sched.is_done or (self.stop_div and (loss > 4 * self.best or math.isnan(loss))):
            return {"stop_epoch": True, "stop_training": True}
        return None

    def on_train_end(self, **kwargs: Any) -> None:
        self._kept.restore()
        weights, optimizer = self._states
        self.learn._module.load_state_dict(weights)
        self.learn.opt.load_state_dict(optimizer)
        del self._kept, self._states
