"""Callbacks that are learning rate schedules: torch's schedulers, stepped at hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, ReduceLROnPlateau, StepLR

from cadenza.dialects.aitoolbox.abstract import AbstractCallback
from cadenza.dialects.aitoolbox.folders import plain_state
from cadenza.dialects.aitoolbox.multi import MultiOptimizer

__all__ = [
    "ConstantWithWarmup", "ConstantWithWarmupScheduler", "CosineWithWarmup", "CosineWithWarmupScheduler",
    "GeneralLRSchedulerCallback", "HardRestartsCosineWithWarmup", "HardRestartsCosineWithWarmupScheduler",
    "LambdaLRScheduler", "LinearWithWarmup", "LinearWithWarmupScheduler", "MultiStepLRScheduler",
    "ReduceLROnPlateauMetricScheduler", "ReduceLROnPlateauScheduler", "StepLRScheduler",
]  # fmt: skip


class GeneralLRSchedulerCallback(AbstractCallback):
    """Any scheduler of torch, stepped at the end of each epoch. It is made for the loop's optimizer when the
    callback is registered, and its state is kept in checkpoints."""

    def __init__(self, scheduler_class: Callable[..., Any], optimizer_idx: int | None = None, **kwargs: Any) -> None:
        super().__init__(f"{getattr(scheduler_class, '__name__', 'Learning rate')} schedule")
        self.scheduler_class, self.optimizer_idx, self.kwargs = scheduler_class, optimizer_idx, kwargs
        self.scheduler: Any = None
        self._loaded: dict[str, Any] | None = None

    def register_train_loop_object(self, train_loop_obj: Any) -> AbstractCallback:
        if self.scheduler is None:
            optimizer = train_loop_obj.optimizer
            if isinstance(optimizer, MultiOptimizer):
                if self.optimizer_idx is None:
                    raise TypeError(f"{self.callback_name}: there are {len(optimizer)} optimizers; give optimizer_idx")
                optimizer = optimizer[self.optimizer_idx]
            self.scheduler = self.scheduler_class(optimizer, **self.kwargs)
            if self._loaded is not None:
                self.load_state_dict(self._loaded)
        return super().register_train_loop_object(train_loop_obj)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scheduler is None else plain_state(self.scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.scheduler is None:
            self._loaded = state
        else:
            self.scheduler.load_state_dict({**self.scheduler.state_dict(), **state})

    def on_epoch_end(self) -> None:
        self.scheduler.step()


class ReduceLROnPlateauMetricScheduler(GeneralLRSchedulerCallback):
    """Reduces the learning rate when a metric of the history does not improve."""

    def __init__(self, metric_name: str, **kwargs: Any) -> None:
        super().__init__(ReduceLROnPlateau, **kwargs)
        self.metric_name = metric_name

    def on_epoch_end(self) -> None:
        self.scheduler.step(self.train_loop_obj.train_history[self.metric_name][-1])


class ReduceLROnPlateauScheduler(ReduceLROnPlateauMetricScheduler):
    """Reduces the learning rate when the validation loss does not improve; ``main_multi_loss`` names one of several."""

    def __init__(self, main_multi_loss: str | None = None, **kwargs: Any) -> None:
        super().__init__("val_loss" if main_multi_loss is None else f"val_loss_{main_multi_loss}", **kwargs)


class LambdaLRScheduler(GeneralLRSchedulerCallback):
    """The learning rate times a function of how often it was stepped, at epoch ends or after real steps."""

    def __init__(
        self, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]], execute_epoch_end: bool = True,
        execute_batch_end: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(LambdaLR, lr_lambda=lr_lambda, **kwargs)
        self.execute_epoch_end, self.execute_batch_end = execute_epoch_end, execute_batch_end

    def on_batch_end(self) -> None:
        if self.execute_batch_end and self.train_loop_obj.should_execute_optimizer_update():
            self.scheduler.step()

    def on_epoch_end(self) -> None:
        if self.execute_epoch_end:
            self.scheduler.step()


class StepLRScheduler(GeneralLRSchedulerCallback):
    """The learning rate is multiplied every ``step_size`` epochs."""

    def __init__(self, step_size: int, **kwargs: Any) -> None:
        super().__init__(StepLR, step_size=step_size, **kwargs)


class MultiStepLRScheduler(GeneralLRSchedulerCallback):
    """The learning rate is multiplied at each of the epochs in ``milestones_list``."""

    def __init__(self, milestones_list: Sequence[int], **kwargs: Any) -> None:
        super().__init__(MultiStepLR, milestones=list(milestones_list), **kwargs)


class WarmupScheduler(LambdaLRScheduler):
    """Rises from 0 over ``warmup`` real steps, then follows ``after(progress)``, of which 1 is at step ``total``."""

    def __init__(self, warmup: int, total: int, after: Callable[[float], float], **kwargs: Any) -> None:
        def factor(step: int) -> float:
            return step / max(1, warmup) if step < warmup else after((step - warmup) / max(1, total - warmup))

        super().__init__(factor, execute_epoch_end=False, execute_batch_end=True, **kwargs)


class ConstantWithWarmupScheduler(WarmupScheduler):
    """Rises, then stays.

    >>> ConstantWithWarmupScheduler(4).callback_name
    'LambdaLR schedule'
    """

    def __init__(self, num_warmup_steps: int, **kwargs: Any) -> None:
        super().__init__(num_warmup_steps, num_warmup_steps, lambda progress: 1.0, **kwargs)


class LinearWithWarmupScheduler(WarmupScheduler):
    """Rises, then falls in a straight line to 0 at ``num_training_steps``."""

    def __init__(self, num_warmup_steps: int, num_training_steps: int, **kwargs: Any) -> None:
        super().__init__(num_warmup_steps, num_training_steps, lambda progress: max(0.0, 1.0 - progress), **kwargs)


class CosineWithWarmupScheduler(WarmupScheduler):
    """Rises, then follows ``num_cycles`` waves of a cosine."""

    def __init__(self, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, **kwargs: Any) -> None:
        def after(progress: float) -> float:
            return max(0.0, 0.5 * (1.0 + math.cos(math.pi * num_cycles * 2.0 * progress)))

        super().__init__(num_warmup_steps, num_training_steps, after, **kwargs)


class HardRestartsCosineWithWarmupScheduler(WarmupScheduler):
    """Rises, then falls along a cosine and starts anew, ``num_cycles`` times."""

    def __init__(self, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, **kwargs: Any) -> None:
        def after(progress: float) -> float:
            return 0.0 if progress >= 1 else 0.5 * (1.0 + math.cos(math.pi * ((num_cycles * progress) % 1.0)))

        super().__init__(num_warmup_steps, num_training_steps, after, **kwargs)


ConstantWithWarmup, LinearWithWarmup = ConstantWithWarmupScheduler, LinearWithWarmupScheduler
CosineWithWarmup, HardRestartsCosineWithWarmup = CosineWithWarmupScheduler, HardRestartsCosineWithWarmupScheduler
