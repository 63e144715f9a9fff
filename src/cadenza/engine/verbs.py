"""What the verbs of a run do at this moment: in a stage, between passes, after a loop was left by ``break``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from cadenza.engine.dispatch import Player
    from cadenza.run import Run


class Forward(Protocol):
    """The forward and loss spans; ``compute`` takes the place of the behaviour."""

    def __call__(self, run: Run, compute: Player | None = None) -> bool: ...


@dataclass(frozen=True)
class Verbs:
    """One function a verb. Those that return a bool say False when something was asked away."""

    train_step: Callable[[Run], bool]
    eval_step: Callable[[Run], bool]
    forward: Forward
    backward: Callable[[Run], bool]
    step: Callable[[Run], bool]
    again: Callable[[Run], Tensor]
    step_optimizer: Callable[[Run, Optimizer], None]


def each_verb(make: Callable[[str], Callable[..., Any]]) -> Verbs:
    """Verbs that all do the same: what ``make`` returns for their name."""
    return Verbs(**{field.name: make(field.name) for field in fields(Verbs)})


def _needs_a_batch(verb: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise RuntimeError(
            f"run.{verb}() needs a batch: call it inside `for batch in run.train(...)` or run.validate(...)"
        )

    return refuse


NO_VERBS: Verbs = each_verb(_needs_a_batch)
"""The verbs when no pass is open."""
