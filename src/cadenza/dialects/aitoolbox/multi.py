"""Several losses and several optimizers in one training."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from cadenza.callbacks.training.clip import trained_parameters

__all__ = ["MultiLoss", "MultiOptimizer"]


class MultiLoss(UserDict[str, Any]):
    """Losses under names, as a dict. The first trains the parameters of the first optimizer, the second those of the
    second, and so on; ``loss_optimizer_map`` as ``{"name": 0}`` pairs them in another way. A loss without an optimizer
    trains nothing.

    >>> import torch
    >>> losses = MultiLoss({"zeta": torch.tensor(1.0), "alpha": torch.tensor(2.0)})
    >>> losses.total(), losses.item()
    (tensor(3.), {'zeta': 1.0, 'alpha': 2.0})
    """

    def __init__(
        self, loss_dict: Mapping[str, Any], loss_optimizer_map: Mapping[Any, Any] | None = None,
        retain_graph_until_last: bool = True,
    ) -> None:  # fmt: skip
        if not loss_dict:
            raise ValueError("MultiLoss takes a dict of at least one loss by name")
        self.data: dict[str, Any] = dict(loss_dict)
        self.retain_graph_until_last = retain_graph_until_last
        pairs = [(b, a) if isinstance(a, int) else (a, b) for a, b in (loss_optimizer_map or {}).items()]
        self.loss_optimizer_map: dict[str, int] | None = dict(pairs) or None
        for name, _ in pairs:
            if name not in self.data:
                raise ValueError(f"loss_optimizer_map names the loss {name!r}; there are {', '.join(self.data)}")

    def total(self) -> Any:
        """The sum of all, which is what is shown and averaged as the loss of the run."""
        return sum(list(self.values())[1:], start=next(iter(self.values())))

    def item(self) -> dict[str, float]:
        """The values by name. This waits for the device."""
        return {name: float(loss) for name, loss in self.items()}

    def each(self, change: Callable[[Any], Any]) -> MultiLoss:
        """A ``MultiLoss`` of what ``change`` makes of each loss."""
        made = {name: change(loss) for name, loss in self.items()}
        return MultiLoss(made, self.loss_optimizer_map, self.retain_graph_until_last)

    def detach(self) -> MultiLoss:
        return self.each(lambda loss: loss.detach())

    def numpy(self) -> MultiLoss:
        return self.each(lambda loss: loss.detach().cpu().numpy())

    def to(self, *args: Any, **kwargs: Any) -> MultiLoss:
        return self.each(lambda loss: loss.to(*args, **kwargs))

    def cpu(self) -> MultiLoss:
        return self.to("cpu")

    def cuda(self, *args: Any, **kwargs: Any) -> MultiLoss:
        return self.each(lambda loss: loss.cuda(*args, **kwargs))

    def __truediv__(self, divisor: float) -> MultiLoss:
        return self.each(lambda loss: loss / divisor)

    def backward(self, factor: Any, optimizers: Sequence[Optimizer]) -> None:
        """Adds the gradients of each loss, times ``factor``, to the parameters that it trains."""
        pairs = self.loss_optimizer_map or {name: index for index, name in enumerate(self)}
        trained = [(name, index) for name, index in pairs.items() if index < len(optimizers)]
        for number, (name, index) in enumerate(trained, 1):
            keep = self.retain_graph_until_last and number < len(trained)
            (self[name] * factor).backward(retain_graph=keep, inputs=trained_parameters([optimizers[index]]))

    def get_loss_dict(self) -> dict[str, Any]:
        return self.data

    loss_dict = property(get_loss_dict)


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
