"""fastai's mixtures of two samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cadenza.dialects.fastai.learner_callback import LearnerCallback
from cadenza.dialects.numeric import numpy as np

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = ["MixUpCallback", "MixUpLoss"]


class MixUpCallback(LearnerCallback):
    """Mixes each sample with another, by a share from Beta(alpha, alpha) that is at least a half. With ``stack_y`` the
    loss is that of both targets; without it targets are mixed too, so they must be numbers that can be."""

    def __init__(self, learn: Learner, alpha: float = 0.4, stack_x: bool = False, stack_y: bool = True) -> None:
        super().__init__(learn)
        self.alpha, self.stack_x, self.stack_y = alpha, stack_x, stack_y

    def on_train_begin(self, **kwargs: Any) -> None:
        if self.stack_y:
            run = self._section.run
            run.criterion = MixUpLoss(run.criterion)

    def on_batch_begin(self, last_input: Tensor, last_target: Tensor, train: bool, **kwargs: Any) -> Any:
        if not train:
            return None
        drawn = last_input.new_tensor(np.random.beta(self.alpha, self.alpha, len(last_target)))
        share = torch.maximum(drawn, 1 - drawn)
        order = torch.randperm(len(last_target)).to(last_input.device)
        wide = share.reshape(-1, *[1] * (last_input.dim() - 1))
        mixed: Any = last_input * wide + last_input[order] * (1 - wide)
        if self.stack_x:
            mixed = [last_input, last_input[order], share]
        if self.stack_y:
            target = torch.stack([last_target.float(), last_target[order].float(), share], 1)
        else:
            wide = share.reshape(-1, *[1] * (last_target.dim() - 1))
            target = last_target.float() * wide + last_target[order].float() * (1 - wide)
        return {"last_input": mixed, "last_target": target}


class MixUpLoss(nn.Module):
    """The loss of both targets, by their shares; of plain targets, the loss as it is."""

    def __init__(self, crit: Any, reduction: str = "mean") -> None:
        super().__init__()
        self.crit, self.reduction = crit, reduction

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if target.dim() != 2 or target.shape[1] != 3:
            plain: Tensor = self.crit(output, target)
            return plain
        first, second, share = target[:, 0].long(), target[:, 1].long(), target[:, 2]
        before, self.crit.reduction = self.crit.reduction, "none"
        try:
            losses: Tensor = self.crit(output, first) * share + self.crit(output, second) * (1 - share)
        finally:
            self.crit.reduction = before
        return losses.mean() if self.reduction == "mean" else losses.sum() if self.reduction == "sum" else losses
