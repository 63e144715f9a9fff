"""Models that compute their own loss and predictions, and models that are told how by a feed definition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from cadenza.data import to_device


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


class Feeding:
    """One way to ask for losses and predictions, whether the model knows how or a definition says it."""

    def __init__(self, model: nn.Module, definition: AbstractModelFeedDefinition | None) -> None:
        self.model, self.definition = model, definition

    def loss(self, batch: Any, criterion: Any, device: torch.device, evaluating: bool) -> Any:
        name = "get_loss_eval" if evaluating else "get_loss"
        if self.definition is not None:
            return getattr(self.definition, name)(self.model, batch, criterion, device)
        return getattr(self.model, name)(batch, criterion, device)

    def predictions(self, batch: Any, device: torch.device) -> tuple[Any, Any, dict[str, Any]]:
        if self.definition is not None:
            return self.definition.get_predictions(self.model, batch, device)
        model: Any = self.model
        found: tuple[Any, Any, dict[str, Any]] = model.get_predictions(batch, device)
        return found
