"""A training in stages, a check that the model can be exported, and times."""

from __future__ import annotations

from collections.abc import Callable as Function
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from cadenza.callbacks.showing.export import Call, check_export
from cadenza.dialects.supergradients.callback import Callback, PhaseContext
from cadenza.dialects.supergradients.environment import multi_process_safe
from cadenza.dialects.supergradients.registry import register_callback

__all__ = [
    "ModelConversionCheckCallback", "TimerCallback", "TrainingStageSwitchCallbackBase",
    "YoloXTrainingStageSwitchCallback",
]  # fmt: skip


class TrainingStageSwitchCallbackBase(Callback):
    """Calls ``apply_stage_change(context)`` once, at the beginning of epoch ``next_stage_start_epoch``; in a training
    that is resumed after it, at the beginning."""

    def __init__(self, next_stage_start_epoch: int) -> None:
        self.next_stage_start_epoch = next_stage_start_epoch
        self.changed = False

    def on_training_start(self, context: PhaseContext) -> None:
        self.changed = False

    def on_train_loader_start(self, context: PhaseContext) -> None:
        if not self.changed and context.epoch >= self.next_stage_start_epoch:
            self.changed = True
            self.apply_stage_change(context)

    def apply_stage_change(self, context: PhaseContext) -> None:
        """What changes; override it."""
        raise NotImplementedError(f"{type(self).__name__} does not say what changes: define apply_stage_change")


@register_callback()
class YoloXTrainingStageSwitchCallback(TrainingStageSwitchCallbackBase):
    """Closes the transforms of the training data that can be closed, and turns on the L1 part of the loss."""

    def __init__(self, next_stage_start_epoch: int = 285) -> None:
        super().__init__(next_stage_start_epoch)

    def apply_stage_change(self, context: PhaseContext) -> None:
        for transform in getattr(context.train_loader.dataset, "transforms", None) or ():
            if hasattr(transform, "close"):
                transform.close()
        if not hasattr(context.criterion, "use_l1"):
            raise AttributeError(
                f"supergradients: YoloXTrainingStageSwitchCallback sets use_l1 of the loss, which "
                f"{type(context.criterion).__name__} does not have; derive from TrainingStageSwitchCallbackBase"
            )
        context.criterion.use_l1 = True


@register_callback()
class ModelConversionCheckCallback(Callback):
    """Before training: exports the model to ONNX, runs it there, and compares; raises if that does not work."""

    def __init__(
        self,
        model_name: Any = None,
        input_dimensions: Sequence[int] = (3, 224, 224),
        primary_batch_size: int = 1,
        rtol: float = 1e-3,
        atol: float = 1e-5,
        model_meta_data: Any = None,
        **options: Any,
    ) -> None:
        if model_meta_data is not None:
            model_name, input_dimensions, primary_batch_size = (
                getattr(model_meta_data, name) for name in ("name", "input_dimensions", "primary_batch_size")
            )
        known = {"opset_version", "do_constant_folding", "input_names", "output_names", "dynamic_axes"}
        for name in options.keys() - known:
            raise TypeError(f"ModelConversionCheckCallback has no argument {name!r}")
        self.model_name, self.input_dimensions = model_name, tuple(input_dimensions)
        self.primary_batch_size, self.rtol, self.atol = primary_batch_size, rtol, atol
        self.dynamic = bool(options.get("dynamic_axes"))
        self.result: Any = None

    @multi_process_safe
    def on_training_start(self, context: PhaseContext) -> None:
        with torch.random.fork_rng():
            inputs = torch.randn(self.primary_batch_size, *self.input_dimensions, device=context.device)
        close = {"rtol": self.rtol, "atol": self.atol}
        self.result = check_export(context.net, Call((inputs,)), None, **close, dynamic_batch=self.dynamic)


SPANS = {
    "epoch_total_time_sec": ("on_train_loader_start", "on_train_loader_end"),
    "train_loader_total_time_ms": ("on_train_loader_start", "on_train_loader_end"),
    "train_batch_total_time_ms": ("on_train_batch_start", "on_train_batch_end"),
    "train_batch_forward_with_loss_ms": ("on_train_batch_start", "on_train_batch_loss_end"),
    "train_batch_gradient_time": ("on_train_batch_gradient_step_start", "on_train_batch_gradient_step_end"),
    "validation_loader_total_time_ms": ("on_validation_loader_start", "on_validation_loader_end"),
    "validation_batch_total_time_ms": ("on_validation_batch_start", "on_validation_batch_end"),
}
"""What is timed, from which hook to which."""


@register_callback()
class TimerCallback(Callback):
    """Logs how long parts of a batch and passes over loaders took in milliseconds, and the epoch in seconds, at the end
    of each pass; of what comes in each batch the mean."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.began: dict[str, float] = {}

    def look(self, hook: str, context: PhaseContext) -> None:
        """Takes the time at one hook."""
        if context.device.startswith("cuda"):
            torch.cuda.synchronize(context.device)  # a time without waiting would be that of the launch
        now = perf_counter()
        for name, (_, last) in SPANS.items():
            if hook == last:
                took = (now - self.began[name]) * (1.0 if name.endswith("_sec") else 1000.0)
                self.times.setdefault(name, []).append(took)
        self.began.update({name: now for name, (first, _) in SPANS.items() if hook == first})
        if hook.endswith("loader_end"):
            for name, times in self.times.items():
                context.sg_logger.add_scalar(f"timer/{name}", sum(times) / len(times), context.epoch)
            self.times = {}


def _looking(hook: str) -> Function[[TimerCallback, PhaseContext], None]:
    return lambda self, context: self.look(hook, context)


for _hook in {hook for span in SPANS.values() for hook in span}:
    setattr(TimerCallback, _hook, _looking(_hook))
