"""What a trainer keeps from one run to the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from cadenza.clock import Clock
from cadenza.history import Best, History

if TYPE_CHECKING:
    from cadenza.engine.processes import Processes, Strategy, World


@dataclass
class Training:
    """What a trainer keeps from one run to the next."""

    module: nn.Module
    optimizers: list[Optimizer]
    criterion: Callable[..., Any] | None
    schedulers: list[Any]
    device: torch.device
    strategy: Strategy
    world: World
    beginning: Callable[[Any], dict[str, Any]]
    """Collects the state of a run when an evaluation begins between training and the end of the epoch."""
    processes: Processes | None = None
    """Those that have met, kept for the next run; None before they have."""
    scheduler_every: str | None = None
    """``"step"`` or ``"epoch"``; None leaves it to the main callback, whose default is once an epoch."""
    experiment: Any = None
    clock: Clock = field(default_factory=Clock)
    history: History = field(default_factory=History)
    best: Best | None = None
    stop_reason: str | None = None
    """Why the last fit stopped before its end; None if nobody asked for it."""
    store: dict[str, Any] = field(default_factory=dict)
    step: dict[str, Any] | None = None
    """How many samples a step of the last fit saw, as checkpoints note it."""
    seed: int | None = None
    seeded: bool = False
    launched: bool = False
    execution: Any = None
    """How steps are executed, an ``Execution``; None is eagerly."""
    told: list[str] = field(default_factory=list)
    """Why steps of the last fit were not executed as asked for."""
