"""Callbacks that are learning rate schedules: torch's schedulers, stepped at hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, ReduceLROnPlateau, StepLR

from cadenza.dialects.aitoolbox.abstract import AbstractCallback
from cadenza.dialects.aitoolbox.multi import MultiOptimizer

__all__ = [
    "ConstantWithWarmup",
    "CosineWithWarmup",
    "GeneralLRSchedulerCallback",
    "HardRestartsCosineWithWarmup",
    "LambdaLRScheduler",
    "LinearWithWarmup",
    "MultiStepLRScheduler",
    "ReduceLROnPlateauMetricScheduler",
    "ReduceLROnPlateauScheduler",
    "StepLRScheduler",
]


class SchedulerCallback(AbstractCallback):
    """Makes a scheduler for the loop's optimizer at the registration, and keeps its state in checkpoints."""

    def __init__(self, callback_name: str, make: Callable[[Optimizer], Any], optimizer_idx: int | None = None) -> None:
        super().__init__(callback_name)
        self.make, self.optimizer_idx = make, optimizer_idx
        self.scheduler: Any = None
        self._loaded: dict[str, Any] | None = None

    def on_train_loop_registration(self) -> None:
        if self.scheduler is not None:
            return
        optimizer = self.train_loop_obj.optimizer
        if isinstance(optimizer, MultiOptimizer):
            if self.optimizer_idx is None:
                raise ValueError(f"{self.callback_name}: there are {len(optimizer)} optimizers; give optimizer_idx")
            optimizer = optimizer[self.optimizer_idx]
        self.scheduler = self.make(optimizer)
        if self._loaded is not None:
            self.scheduler.load_state_dict(self._loaded)

    def state_dict(self) -> dict[str, Any]:
        state = {} if self.scheduler is None else self.scheduler.state_dict()
        return {name: value for name, value in state.items() if not callable(value) and name != "lr_lambdas"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scheduler is None:
            self._loaded = state
        else:
            self.scheduler.load_state_dict({**self.scheduler.state_dict(), **state})


class GeneralLRSchedulerCallback(SchedulerCallback):
    """Any scheduler of torch, stepped at the end of each epoch."""

    def __init__(self, scheduler_class: type[Any], optimizer_idx: int | None = None, **kwargs: Any) -> None:
        super().__init__(
            f"{scheduler_class.__name__} schedule", lambda found: scheduler_class(found, **kwargs), optimizer_idx
        )

    def on_epoch_end(self) -> None:
        self.scheduler.step()


class ReduceLROnPlateauMetricScheduler(SchedulerCallback):
    """Reduces the learning rate when a metric of the history does not improve."""

    def __init__(self, metric_name: str, optimizer_idx: int | None = None, **kwargs: Any) -> None:
        super().__init__(
            f"Plateau schedule of {metric_name}", lambda found: ReduceLROnPlateau(found, **kwargs), optimizer_idx
        )
        self.metric_name = metric_name

    def on_epoch_end(self) -> None:
        self.scheduler.step(self.train_loop_obj.train_history[self.metric_name][-1])


class ReduceLROnPlateauScheduler(ReduceLROnPlateauMetricScheduler):
    """Reduces the learning rate when the validation loss does not improve; ``main_multi_loss`` names one of several."""

    def __init__(self, main_multi_loss: str | None = None, optimizer_idx: int | None = None, **kwargs: Any) -> None:
        name = "val_loss" if main_multi_loss is None else f"val_loss_{main_multi_loss}"
        super().__init__(name, optimizer_idx, **kwargs)


class LambdaLRScheduler(SchedulerCallback):
    """The learning rate times a function of how often it was stepped, at epoch ends or after real steps."""

    def __init__(
        self,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        execute_epoch_end: bool = True,
        execute_batch_end: bool = False,
        optimizer_idx: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__("LambdaLR schedule", lambda found: LambdaLR(found, lr_lambda, **kwargs), optimizer_idx)  # type: ignore[arg-type]
        if not execute_epoch_end and not execute_batch_end:
            raise ValueError("LambdaLRScheduler: one of execute_epoch_end and execute_batch_end must be True")
        self.execute_epoch_end, self.execute_batch_end = execute_epoch_end, execute_batch_end

    def on_batch_end(self) -> None:
        if self.execute_batch_end and self.train_loop_obj.should_execute_optimizer_update():
            self.scheduler.step()

    def on_epoch_end(self) -> None:
        if self.execute_epoch_end:
            self.scheduler.step()


class StepLRScheduler(GeneralLRSchedulerCallback):
    """The learning rate is multiplied every ``step_size`` epochs."""

    def __init__(self, step_size: int, optimizer_idx: int | None = None, **kwargs: Any) -> None:
        super().__init__(StepLR, optimizer_idx, step_size=step_size, **kwargs)


class MultiStepLRScheduler(GeneralLRSchedulerCallback):
    """The learning rate is multiplied at each of the epochs in ``milestones_list``."""

    def __init__(self, milestones_list: Sequence[int], optimizer_idx: int | None = None, **kwargs: Any) -> None:
        super().__init__(MultiStepLR, optimizer_idx, milestones=list(milestones_list), **kwargs)


class WarmupScheduler(LambdaLRScheduler):
    """Rises from 0 over ``num_warmup_steps`` real steps, then follows ``after(progress)``."""

    def __init__(self, num_warmup_steps: int, after: Callable[[int], float], **kwargs: Any) -> None:
        def factor(step: int) -> float:
            return step / max(1, num_warmup_steps) if step < num_warmup_steps else after(step)

        super().__init__(factor, execute_epoch_end=False, execute_batch_end=True, **kwargs)


def _progress(step: int, warmup: int, total: int) -> float:
    return (step - warmup) / max(1, total - warmup)


class ConstantWithWarmup(WarmupScheduler):
    """Rises, then stays.

    >>> ConstantWithWarmup(4).callback_name
    'LambdaLR schedule'
    """

    def __init__(self, num_warmup_steps: int, **kwargs: Any) -> None:
        super().__init__(num_warmup_steps, lambda step: 1.0, **kwargs)


class LinearWithWarmup(WarmupScheduler):
    """Rises, then falls in a straight line to 0 at ``num_training_steps``."""

    def __init__(self, num_warmup_steps: int, num_training_steps: int, **kwargs: Any) -> None:
        def after(step: int) -> float:
            return max(0.0, 1.0 - _progress(step, num_warmup_steps, num_training_steps))

        super().__init__(num_warmup_steps, after, **kwargs)


class CosineWithWarmup(WarmupScheduler):
    """Rises, then follows ``num_cycles`` waves of a cosine."""

    def __init__(self, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, **kwargs: Any) -> None:
        def after(step: int) -> float:
            angle = math.pi * num_cycles * 2.0 * _progress(step, num_warmup_steps, num_training_steps)
            return max(0.0, 0.5 * (1.0 + math.cos(angle)))

        super().__init__(num_warmup_steps, after, **kwargs)


class HardRestartsCosineWithWarmup(WarmupScheduler):
    """Rises, then falls along a cosine and starts anew, ``num_cycles`` times."""

    def __init__(self, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, **kwargs: Any) -> None:
        def after(step: int) -> float:
            progress = _progress(step, num_warmup_steps, num_training_steps)
            return 0.0 if progress >= 1 else 0.5 * (1.0 + math.cos(math.pi * ((num_cycles * progress) % 1.0)))

        super().__init__(num_warmup_steps, after, **kwargs)
