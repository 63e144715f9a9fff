"""Losses by name, and how a batch becomes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from cadenza.dialects.supergradients.registry import build, register_loss
from cadenza.dialects.supergradients.upkeep import unpacked
from cadenza.main_callback import MainCallback

if TYPE_CHECKING:
    from cadenza.run import Run


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """Torch's, whose ``label_smoothing`` is also called ``smooth_eps``."""

    def __init__(self, *args: Any, smooth_eps: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_smoothing = smooth_eps or self.label_smoothing


for _made, _name in (
    (CrossEntropyLoss, "cross_entropy"),
    (nn.MSELoss, "mse"), (nn.L1Loss, "l1"), (nn.SmoothL1Loss, "smooth_l1"), (nn.NLLLoss, "nll"),
    (nn.BCEWithLogitsLoss, "bce_with_logits"), (nn.BCELoss, "bce"), (nn.KLDivLoss, "kl_div"),
):  # fmt: skip
    register_loss(_made.__name__, _name)(_made)


def make_loss(said: Any, arguments: dict[str, Any] | None) -> Any:
    """A loss from its name, ``{name: arguments}``, a class or an object."""
    more = dict(arguments or {})
    made = (
        said(**more) if isinstance(said, type) else build("loss", said, **({} if not isinstance(said, str) else more))
    )
    if not callable(made):
        raise TypeError(f"supergradients: loss is a name, a class or something to call, not {type(made).__name__}")
    return made


def loss_names(criterion: Any, given: Sequence[str] | None) -> list[str]:
    """What the parts of a loss are called: ``<Class>/<part>``, or ``<Class>`` if there is one."""
    name = type(criterion).__name__ if isinstance(criterion, nn.Module) else getattr(criterion, "__name__", "loss")
    parts = list(given or getattr(criterion, "component_names", None) or ())
    return [f"{name}/{part}" for part in parts] if parts else [name]


class BatchWithExtras(MainCallback):
    """Takes a batch apart as ``(inputs, target)`` or ``(inputs, target, {...})``; the loss may return itself, or itself
    and a row of its parts. Parts that have no names are ``loss_0`` and so on."""

    items: Any = None

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def on_iter_forward(self, run: Run) -> None:
        batch = run.batch
        if isinstance(batch, list | tuple) and len(batch) == 3 and isinstance(batch[2], dict):
            run.output = run.model(batch[0])
        else:
            super().on_iter_forward(run)

    def on_iter_loss(self, run: Run) -> None:
        found = run.criterion(run.output, unpacked(run.batch)[1])  # type: ignore[misc]
        if isinstance(found, tuple):
            run.loss, self.items = found[0], found[1].detach().reshape(-1)
            if len(self.names) == 1 < len(self.items):
                self.names = [f"{self.names[0]}/loss_{number}" for number in range(len(self.items))]
        else:
            run.loss, self.items = found, None
