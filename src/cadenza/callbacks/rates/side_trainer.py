"""A trainer beside another, for trials that the other does not notice."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cadenza.callback import Callback
from cadenza.main_callback import MainCallback

if TYPE_CHECKING:
    from cadenza.engine.trainer_state import Training
    from cadenza.trainer import Trainer


def main_callback(trainer: Trainer) -> MainCallback | None:
    """The main callback that was given to ``trainer``, if there is one."""
    return next((callback for callback in trainer.callbacks if isinstance(callback, MainCallback)), None)


def trainer_beside(training: Training, main: MainCallback | None, callbacks: Sequence[Callback]) -> Trainer:
    """Another trainer of the same model with the same optimizers, with a clock and a history of its own.

    A copy of ``main`` plays in it, since one instance plays in one run at a time.
    """
    from cadenza.trainer import Trainer

    return Trainer(
        training.module,
        training.optimizers,
        training.criterion,
        callbacks=[*([] if main is None else [copy.copy(main)]), *callbacks],
        device=training.device,
    )
