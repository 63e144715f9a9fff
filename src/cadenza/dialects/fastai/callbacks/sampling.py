"""Classes drawn equally often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, WeightedRandomSampler

from cadenza.callbacks.training.oversample import balanced, class_indices
from cadenza.data.loader import loader_like
from cadenza.dialects.fastai.recorder import LearnerCallback

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = ["OverSamplingCallback", "UnderSamplingCallback"]


class OverSamplingCallback(LearnerCallback):
    """Draws rare classes as often as common ones for the time of a fit; ``weights`` are those of the samples."""

    undersample = False

    def __init__(self, learn: Learner, weights: Tensor | None = None) -> None:
        super().__init__(learn)
        self.weights = weights

    def on_train_begin(self, **kwargs: Any) -> None:
        run = self._section.run
        loader: DataLoader[Any] = run.train_loader
        if self.weights is None:
            run.train_loader = balanced(loader, undersample=self.undersample)
            return
        counts = torch.bincount(class_indices(loader.dataset))
        draws = int(counts.max()) * int((counts > 0).sum())
        sampler = WeightedRandomSampler(self.weights.tolist(), draws)
        run.train_loader = loader_like(loader, sampler=sampler)


class UnderSamplingCallback(OverSamplingCallback):
    """Draws common classes as rarely as the rarest."""

    undersample = True
