"""How a batch becomes a loss and predictions: the model or the feed definition says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cadenza.callback import MainCallback
from cadenza.dialects.aitoolbox.models import AbstractModelFeedDefinition, Feeding, TTModel
from cadenza.dialects.aitoolbox.multi import MultiLoss

if TYPE_CHECKING:
    from cadenza.run import Run


class FedModel(MainCallback):
    """Asks a ``TTModel``, or the feed definition of a ``ModelWrap``, for losses and predictions. A model of neither
    kind is called as the trainer calls any other."""

    def __init__(self, definition: AbstractModelFeedDefinition | None = None) -> None:
        super().__init__()
        self.definition = definition
        self.losses: MultiLoss | None = None
        self.answers: tuple[Any, dict[str, Any]] | None = None

    def feeding(self, run: Run) -> Feeding | None:
        if self.definition is None and not isinstance(run.module, TTModel):
            return None
        return Feeding(run.module, self.definition)

    def on_iter_forward(self, run: Run) -> None:
        feeding = self.feeding(run)
        if feeding is None:
            super().on_iter_forward(run)
            return
        loss = feeding.loss(run.batch, run.criterion, run.device, evaluating=run.stage != "train")
        self.losses = loss if isinstance(loss, MultiLoss) else None
        run.loss = loss.total() if isinstance(loss, MultiLoss) else loss

    def on_pred_forward(self, run: Run) -> None:
        feeding = self.feeding(run)
        if feeding is None:
            self.answers = None
            super().on_iter_forward(run)
            return
        run.output, targets, metadata = feeding.predictions(run.batch, run.device)
        self.answers = (targets, metadata)

    def on_iter_backward(self, run: Run) -> None:
        losses, self.losses = self.losses, None
        if losses is None:
            super().on_iter_backward(run)
            return
        factor = run.loss_weight if run.scaler is None else run.loss_weight * run.scaler.get_scale()
        losses.backward(factor, run.optimizers)
