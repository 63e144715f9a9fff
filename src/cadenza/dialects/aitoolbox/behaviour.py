"""How a batch becomes a loss and predictions: the model or the feed definition says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cadenza.dialects.aitoolbox.models import AbstractModelFeedDefinition, Feeding, TTModel
from cadenza.dialects.aitoolbox.multi import MultiLoss
from cadenza.main_callback import MainCallback

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
        loss = self._through_wrapper(run, feeding) if run.stage == "train" else self._loss(run, feeding, run.batch)
        self.losses = loss if isinstance(loss, MultiLoss) else None
        run.loss = loss.total() if isinstance(loss, MultiLoss) else loss

    def _loss(self, run: Run, feeding: Feeding, batch: Any) -> Any:
        return feeding.loss(batch, run.criterion, run.device, evaluating=run.stage != "train")

    def _through_wrapper(self, run: Run, feeding: Feeding) -> Any:
        """The loss, computed inside a call of ``run.model``: what is wrapped around the module, such as DDP, must see
        a call to take part in the backward. The model's own calls of itself are then its own ``forward`` again."""
        module, model = run.module, run.model
        if model is module:
            return self._loss(run, feeding, run.batch)

        def forward(batch: Any) -> Any:
            vars(module).pop("forward", None)
            return self._loss(run, feeding, batch)

        module.forward = forward
        try:
            return model(run.batch)
        finally:
            vars(module).pop("forward", None)

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
        if run.world_size > 1 and losses.is_paired(run.optimizers):
            raise RuntimeError(
                "aitoolbox: losses that train different optimizers need several backward passes, which many processes "
                "cannot reduce; train on one process, or return one loss"
            )
        factor = run.loss_weight if run.scaler is None else run.loss_weight * run.scaler.get_scale()
        losses.backward(factor, run.optimizers)
