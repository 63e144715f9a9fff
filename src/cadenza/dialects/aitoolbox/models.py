"""Models that compute their own loss and predictions, and models that are told how by a feed definition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cadenza.data import to_device
from cadenza.dialects.aitoolbox.multi import MultiLoss
from cadenza.main_callback import MainCallback

if TYPE_CHECKING:
    from cadenza.run import Run

__all__ = ["AbstractModelFeedDefinition", "ModelWrap", "TTBasicModel", "TTModel"]


class TTModel(nn.Module, ABC):
    """A model that knows how a batch becomes a loss and how it becomes predictions.

    >>> class Classifier(TTModel):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(4, 3)
    ...     def forward(self, inputs):
    ...         return self.layer(inputs)
    ...     def get_loss(self, batch_data, criterion, device):
    ...         inputs, targets = batch_data
    ...         return criterion(self(inputs.to(device)), targets.to(device))
    ...     def get_predictions(self, batch_data, device):
    ...         inputs, targets = batch_data
    ...         return self(inputs.to(device)).argmax(1), targets, {}
    """

    @abstractmethod
    def get_loss(self, batch_data: Any, criterion: Any, device: torch.device) -> Any:
        """The loss of one batch of training."""

    def get_loss_eval(self, batch_data: Any, criterion: Any, device: torch.device) -> Any:
        """The loss of one batch of an evaluation; by default as in training."""
        return self.get_loss(batch_data, criterion, device)

    @abstractmethod
    def get_predictions(self, batch_data: Any, device: torch.device) -> tuple[Any, Any, dict[str, Any]]:
        """Predictions, targets and further data of one batch."""


class TTBasicModel(TTModel):
    """A model whose batches are the inputs, one after the other, and the target at the end.

    >>> class Plain(TTBasicModel):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(4, 3)
    ...     def forward(self, inputs):
    ...         return self.layer(inputs)
    >>> model, batch = Plain(), (torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))
    >>> model.get_loss(batch, nn.CrossEntropyLoss(), torch.device("cpu")).shape
    torch.Size([])
    """

    def get_loss(self, batch_data: Any, criterion: Any, device: torch.device) -> Any:
        *inputs, targets = to_device(batch_data, device)
        return criterion(self(*inputs), targets)

    def get_predictions(self, batch_data: Any, device: torch.device) -> tuple[Any, Any, dict[str, Any]]:
        *inputs, targets = to_device(batch_data, device)
        return self(*inputs).cpu(), targets.cpu(), {}


class AbstractModelFeedDefinition(ABC):
    """Says how a batch is fed to a model that does not know it itself."""

    @abstractmethod
    def get_loss(self, model: Any, batch_data: Any, criterion: Any, device: torch.device) -> Any:
        """The loss of one batch of training."""

    def get_loss_eval(self, model: Any, batch_data: Any, criterion: Any, device: torch.device) -> Any:
        """The loss of one batch of an evaluation; by default as in training."""
        return self.get_loss(model, batch_data, criterion, device)

    @abstractmethod
    def get_predictions(self, model: Any, batch_data: Any, device: torch.device) -> tuple[Any, Any, dict[str, Any]]:
        """Predictions, targets and further data of one batch."""


class ModelWrap:
    """A plain model together with the definition of how it is fed."""

    def __init__(self, model: nn.Module, batch_model_feed_def: AbstractModelFeedDefinition) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"ModelWrap takes a torch.nn.Module, not {type(model).__name__}")
        if not isinstance(batch_model_feed_def, AbstractModelFeedDefinition):
            given = type(batch_model_feed_def).__name__
            raise TypeError(f"ModelWrap takes an AbstractModelFeedDefinition as its second argument, not {given}")
        self.model, self.batch_model_feed_def = model, batch_model_feed_def


class FedModel(MainCallback):
    """Asks a ``TTModel``, or the feed definition of a ``ModelWrap``, for losses and predictions. A model of neither
    kind is called as the trainer calls any other."""

    def __init__(self, definition: AbstractModelFeedDefinition | None = None) -> None:
        super().__init__()
        self.definition = definition
        self.losses: MultiLoss | None = None

    def knows(self, run: Run) -> bool:
        """Whether there is a definition, or a model that needs none."""
        return self.definition is not None or isinstance(run.module, TTModel)

    def ask(self, run: Run, method: str, *given: Any) -> Any:
        """What the definition, or else the model, says."""
        if self.definition is not None:
            return getattr(self.definition, method)(run.module, *given)
        return getattr(run.module, method)(*given)

    def on_iter_forward(self, run: Run) -> None:
        if not self.knows(run):
            super().on_iter_forward(run)
            return
        loss = self._through_wrapper(run) if run.stage == "train" else self._loss(run, run.batch)
        self.losses = loss if isinstance(loss, MultiLoss) else None
        run.loss = loss.total() if isinstance(loss, MultiLoss) else loss

    def _loss(self, run: Run, batch: Any) -> Any:
        method = "get_loss" if run.stage == "train" else "get_loss_eval"
        return self.ask(run, method, batch, run.criterion, run.device)

    def _through_wrapper(self, run: Run) -> Any:
        """The loss, computed inside a call of ``run.model``: what is wrapped around the module, such as DDP, must see
        a call to take part in the backward. The model's own calls of itself are then its own ``forward`` again."""
        module, model = run.module, run.model
        if model is module:
            return self._loss(run, run.batch)

        def forward(batch: Any) -> Any:
            vars(module).pop("forward", None)
            return self._loss(run, batch)

        module.forward = forward
        try:
            return model(run.batch)
        finally:
            vars(module).pop("forward", None)

    def on_pred_forward(self, run: Run) -> None:
        if self.knows(run):
            run.output = self.ask(run, "get_predictions", run.batch, run.device)[0]
        else:
            super().on_iter_forward(run)

    def on_iter_backward(self, run: Run) -> None:
        losses = self.losses
        if losses is None:
            super().on_iter_backward(run)
            return
        if run.world_size > 1:
            raise RuntimeError(
                "aitoolbox: losses that train different optimizers need several backward passes, which many processes "
                "cannot reduce; train on one process, or return one loss"
            )
        factor = run.loss_weight if run.scaler is None else run.loss_weight * run.scaler.get_scale()
        losses.backward(factor, run.optimizers)
