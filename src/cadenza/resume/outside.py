"""Parameters that the optimizers train and the model does not have, such as those of a criterion, or of nothing else.

No state dict of the model holds them, and under DDP each process has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cadenza.run import Run


def collect_outside(run: Run) -> dict[str, dict[str, Any]]:
    """By their places in the optimizers: the value, the gradient if it waits for a step, the state in the optimizer."""
    return {
        place: {"value": one.detach(), "gradient": one.grad, "state": dict(kept)} for place, one, kept in _outside(run)
    }


def load_outside(run: Run, saved: dict[str, dict[str, Any]]) -> None:
    """Restores what ``collect_outside`` found; the optimizers hold their parameters in the saved order by now."""
    for place, one, kept in _outside(run):
        found = saved[place]
        gradient = found["gradient"]
        one.grad = None if gradient is None else gradient.to(one.device, copy=True)
        with torch.no_grad():
            one.copy_(found["value"])
            for name, value in found["state"].items():
                if isinstance(value, Tensor) and isinstance(kept.get(name), Tensor):
                    kept[name].copy_(value)


def _outside(run: Run) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    known = {id(one) for one in run.module.parameters()}
    for number, optimizer in enumerate(run.optimizers):
        held = [one for group in optimizer.param_groups for one in group["params"]]
        for place, one in enumerate(held):
            if id(one) not in known:
                yield f"{number}.{place}", one, optimizer.state.get(one, {})
