"""Several losses and several optimizers in one training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class MultiLoss:
    """Losses under names. ``loss_optimizer_map`` says which loss trains the parameters of which optimizer, as
    ``{0: "name"}`` or ``{"name": 0}``. Without it, as many losses as optimizers are paired in their order; otherwise
    their sum trains all parameters.

    >>> import torch
    >>> losses = MultiLoss({"zeta": torch.tensor(1.0), "alpha": torch.tensor(2.0)})
    >>> losses.total(), losses.numbers()
    (tensor(3.), {'zeta': 1.0, 'alpha': 2.0})
    """

    def __init__(
        self,
        loss_dict: Mapping[str, Tensor],
        loss_optimizer_map: Mapping[Any, Any] | None = None,
        retain_graph_until_last: bool = True,
    ) -> None:
        if not loss_dict:
            raise ValueError("MultiLoss takes a dict of at least one loss by name")
        self.loss_dict = dict(loss_dict)
        self.retain_graph_until_last = retain_graph_until_last
        self.loss_optimizer_map: dict[str, int] | None = None
        if loss_optimizer_map is not None:
            pairs = [(b, a) if isinstance(a, int) else (a, b) for a, b in loss_optimizer_map.items()]
            self.loss_optimizer_map = dict(pairs)
        for name in self.loss_optimizer_map or ():
            if name not in self.loss_dict:
                raise ValueError(f"loss_optimizer_map names the loss {name!r}; there are {', '.join(self.loss_dict)}")

    def total(self) -> Tensor:
        """The sum of all, which is what is shown and averaged as the loss of the run."""
        losses = iter(self.loss_dict.values())
        total = next(losses)
        for loss in losses:
            total = total + loss
        return total

    def numbers(self) -> dict[str, float]:
        """The values by name. This waits for the device."""
        return {name: float(loss.detach()) for name, loss in self.loss_dict.items()}

    def backward(self, factor: Any, optimizers: Sequence[Optimizer]) -> None:
        """Adds the gradients of each loss, times ``factor``, to the parameters that it trains."""
        pairs = list(self._trained(optimizers))
        for number, (loss, parameters) in enumerate(pairs):
            last = number == len(pairs) - 1
            keep = self.retain_graph_until_last and not last
            (loss * factor).backward(retain_graph=keep, inputs=parameters)

    def is_paired(self, optimizers: Sequence[Optimizer]) -> bool:
        """Whether each loss trains the parameters of one optimizer."""
        return self.loss_optimizer_map is not None or len(self.loss_dict) == len(optimizers) > 1

    def _trained(self, optimizers: Sequence[Optimizer]) -> Iterator[tuple[Tensor, list[Tensor] | None]]:
        pairs = self.loss_optimizer_map
        if pairs is None and self.is_paired(optimizers):
            pairs = {name: index for index, name in enumerate(self.loss_dict)}
        if pairs is None:
            yield self.total(), None
            return
        for name, index in pairs.items():
            yield self.loss_dict[name], [p for group in optimizers[index].param_groups for p in group["params"]]

    def __getitem__(self, name: str) -> Tensor:
        return self.loss_dict[name]

    def __len__(self) -> int:
        return len(self.loss_dict)

    def keys(self) -> list[str]:
        return list(self.loss_dict)


class MultiOptimizer:
    """Several optimizers that are stepped together.

    >>> import torch
    >>> layers = [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
    >>> len(MultiOptimizer([torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]))
    2
    """

    def __init__(self, optimizer_list: Sequence[Optimizer]) -> None:
        if not optimizer_list or not all(isinstance(one, Optimizer) for one in optimizer_list):
            raise TypeError("MultiOptimizer takes a list of torch.optim.Optimizer")
        self.optimizer_list = list(optimizer_list)

    def step(self, optimizer_idx: int) -> None:
        self.optimizer_list[optimizer_idx].step()

    def zero_grad(self, optimizer_idx: int) -> None:
        self.optimizer_list[optimizer_idx].zero_grad()

    def state_dict(self) -> list[dict[str, Any]]:
        return [one.state_dict() for one in self.optimizer_list]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        for optimizer, state in zip(self.optimizer_list, states, strict=True):
            optimizer.load_state_dict(state)

    def __getitem__(self, index: int) -> Optimizer:
        return self.optimizer_list[index]

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self.optimizer_list)

    def __len__(self) -> int:
        return len(self.optimizer_list)
