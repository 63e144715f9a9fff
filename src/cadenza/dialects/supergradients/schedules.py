"""Learning rates: schedules that are phase callbacks, and torch's schedulers."""

from __future__ import annotations

import math
from collections.abc import Callable as Function
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from cadenza.dialects.supergradients.callback import PhaseCallback, PhaseContext
from cadenza.dialects.supergradients.parameters import DEFAULT_TRAINING_PARAMS
from cadenza.dialects.supergradients.phases import Phase
from cadenza.dialects.supergradients.registry import register_callback, register_lr_scheduler

__all__ = [
    "CosineLRCallback", "CosineLRScheduler", "ExponentialLRCallback", "ExponentialLRScheduler", "FunctionLRCallback",
    "FunctionLRScheduler", "LRCallbackBase", "LRSchedulerCallback", "PolyLRCallback", "PolyLRScheduler",
    "StepLRCallback", "StepLRScheduler",
]  # fmt: skip


class LRCallbackBase(PhaseCallback):
    """The base of schedules: ``perform_scheduling`` is called at its phase when ``is_lr_scheduling_enabled``.

    ``initial_lr`` is one number, or a mapping from names of parameter groups to numbers.
    """

    __dialect_base__ = True

    def __init__(
        self,
        phase: Phase | str,
        initial_lr: float | Mapping[str, float],
        update_param_groups: bool = False,
        train_loader_len: int = 0,
        net: Any = None,
        training_params: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(phase)
        for name in kwargs.keys() - DEFAULT_TRAINING_PARAMS.keys():  # a schedule is handed all training parameters
            raise TypeError(f"supergradients: {type(self).__name__} has no argument {name!r}")
        self.initial_lr = dict(initial_lr) if isinstance(initial_lr, Mapping) else {"default": float(initial_lr)}
        self.lr: Any = dict(self.initial_lr)
        self.update_param_groups, self.train_loader_len = update_param_groups, train_loader_len
        self.net, self.training_params = net, training_params

    def __call__(self, context: PhaseContext) -> None:
        if self.is_lr_scheduling_enabled(context):
            self.perform_scheduling(context)

    def is_lr_scheduling_enabled(self, context: PhaseContext) -> bool:
        """Whether the rate is set at this moment."""
        raise NotImplementedError

    def perform_scheduling(self, context: PhaseContext) -> None:
        """Computes ``self.lr`` and calls ``update_lr``."""
        raise NotImplementedError

    def update_lr(self, optimizer: Optimizer, epoch: int | None, batch_idx: int | None = None) -> None:
        """Sets ``self.lr`` in the optimizer: each group by its name, or all by the one under "default" or
        a single number."""
        rates = self.lr if isinstance(self.lr, Mapping) else {"default": self.lr}
        for number, group in enumerate(optimizer.param_groups):
            name = str(group.get("name", number))
            group["lr"] = rates[name] if name in rates else rates.get("default", group["lr"])

    def scale(self, factor: float) -> None:
        """Every rate is its initial one times ``factor``."""
        self.lr = {name: lr * factor for name, lr in self.initial_lr.items()}

    @property
    def warmup_epochs(self) -> int:
        return int(getattr(self.training_params, "lr_warmup_epochs", 0) or 0)

    @property
    def cooldown_epochs(self) -> int:
        return int(getattr(self.training_params, "lr_cooldown_epochs", 0) or 0)


@register_lr_scheduler("StepLRScheduler", "step")
class StepLRScheduler(LRCallbackBase):
    """At the end of an epoch: the initial rate times ``lr_decay_factor`` for each of ``lr_updates`` that has passed."""

    def __init__(
        self,
        lr_updates: Any = None,
        lr_decay_factor: float = 0.1,
        step_lr_update_freq: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(Phase.TRAIN_EPOCH_END, **kwargs)
        self.lr_updates = list(lr_updates or [])
        self.lr_decay_factor = lr_decay_factor
        if step_lr_update_freq and not self.lr_updates:
            last = int(self.training_params.max_epochs) - self.cooldown_epochs
            count = int(last / step_lr_update_freq)
            self.lr_updates = [math.ceil(step_lr_update_freq * number) for number in range(1, count + 1)]

    def is_lr_scheduling_enabled(self, context: PhaseContext) -> bool:
        return self.warmup_epochs <= int(context.epoch)

    def perform_scheduling(self, context: PhaseContext) -> None:
        passed = [update for update in self.lr_updates if update <= context.epoch]
        self.scale(self.lr_decay_factor ** len(passed))
        self.update_lr(context.optimizer, context.epoch)


class PerStep(LRCallbackBase):
    """A schedule that sets the rate after each step, between warm-up and cool-down."""

    __dialect_base__ = True

    def __init__(self, max_epochs: int | None = None, **kwargs: Any) -> None:
        super().__init__(Phase.TRAIN_BATCH_STEP, **kwargs)
        self.max_epochs = int(max_epochs if max_epochs is not None else self.training_params.max_epochs)

    @property
    def last_epoch(self) -> int:
        return self.max_epochs - self.cooldown_epochs

    def is_lr_scheduling_enabled(self, context: PhaseContext) -> bool:
        return self.warmup_epochs <= int(context.epoch) < self.last_epoch

    def steps(self, context: PhaseContext) -> tuple[int, int]:
        """How many batches came since the warm-up, and how many there are until the cool-down."""
        total = self.train_loader_len * (self.last_epoch - self.warmup_epochs)
        return self.train_loader_len * (context.epoch - self.warmup_epochs) + context.batch_idx, total

    def perform_scheduling(self, context: PhaseContext) -> None:
        self.scale(self.factor(context))
        self.update_lr(context.optimizer, context.epoch, context.batch_idx)

    def factor(self, context: PhaseContext) -> float:
        raise NotImplementedError


@register_lr_scheduler("ExponentialLRScheduler", "exp")
class ExponentialLRScheduler(PerStep):
    """The initial rate times ``lr_decay_factor`` to the power of the epochs that have passed, as a fraction."""

    def __init__(self, lr_decay_factor: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lr_decay_factor = lr_decay_factor

    def factor(self, context: PhaseContext) -> float:
        done, _ = self.steps(context)
        return float(self.lr_decay_factor ** (done / self.train_loader_len))


@register_lr_scheduler("PolyLRScheduler", "poly")
class PolyLRScheduler(PerStep):
    """Falls to 0 with a power of 0.9."""

    def factor(self, context: PhaseContext) -> float:
        done, total = self.steps(context)
        return float((1.0 - done / total) ** 0.9)


@register_lr_scheduler("CosineLRScheduler", "cosine")
class CosineLRScheduler(PerStep):
    """Falls along half a cosine to ``cosine_final_lr_ratio`` of the initial rate."""

    def __init__(self, max_epochs: int | None = None, cosine_final_lr_ratio: float = 0.01, **kwargs: Any) -> None:
        super().__init__(max_epochs, **kwargs)
        self.cosine_final_lr_ratio = cosine_final_lr_ratio

    @property
    def warm(self) -> int:
        return int(getattr(self.training_params, "lr_warmup_steps", 0) or 0)

    def is_lr_scheduling_enabled(self, context: PhaseContext) -> bool:
        return super().is_lr_scheduling_enabled(context) and self.steps(context)[0] >= self.warm

    def factor(self, context: PhaseContext) -> float:
        done, total = self.steps(context)
        place = 0.5 * (1.0 + math.cos(math.pi * (done - self.warm) / (total - self.warm + 1)))
        return place * (1 - self.cosine_final_lr_ratio) + self.cosine_final_lr_ratio


@register_lr_scheduler("FunctionLRScheduler", "function")
class FunctionLRScheduler(PerStep):
    """The rate that ``lr_schedule_function(initial_lr, epoch, iter, max_epoch, iters_per_epoch)`` returns."""

    def __init__(
        self, max_epochs: int | None = None, lr_schedule_function: Function[..., float] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(max_epochs, **kwargs)
        if lr_schedule_function is None:
            raise ValueError("FunctionLRScheduler needs lr_schedule_function")
        self.lr_schedule_function = lr_schedule_function

    def perform_scheduling(self, context: PhaseContext) -> None:
        for name, lr in self.initial_lr.items():
            self.lr[name] = self.lr_schedule_function(
                initial_lr=lr,
                epoch=context.epoch - self.warmup_epochs,
                iter=context.batch_idx,
                max_epoch=self.last_epoch - self.warmup_epochs,
                iters_per_epoch=self.train_loader_len,
            )
        self.update_lr(context.optimizer, context.epoch, context.batch_idx)


@register_callback()
class LRSchedulerCallback(PhaseCallback):
    """Steps one of torch's schedulers at a phase, after the warm-up; with a metric if it follows one."""

    def __init__(self, scheduler: Any, phase: Phase | str, metric_name: str | None = None) -> None:
        super().__init__(phase)
        self.scheduler, self.metric_name = scheduler, metric_name

    def __call__(self, context: PhaseContext) -> None:
        if (context.lr_warmup_epochs or 0) > context.epoch:
            return
        if self.metric_name is None:
            self.scheduler.step()
        elif context.metrics_dict and self.metric_name in context.metrics_dict:
            self.scheduler.step(context.metrics_dict[self.metric_name])
        else:
            known = ", ".join(context.metrics_dict or {}) or "none"
            raise KeyError(f"supergradients: the schedule follows {self.metric_name!r}; there are the metrics {known}")

    def state_dict(self) -> dict[str, Any]:
        return dict(self.scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state)


StepLRCallback = StepLRScheduler
ExponentialLRCallback = ExponentialLRScheduler
PolyLRCallback = PolyLRScheduler
CosineLRCallback = CosineLRScheduler
FunctionLRCallback = FunctionLRScheduler
