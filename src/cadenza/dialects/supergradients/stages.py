"""A training in stages, a check that the model can be exported, and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import torch

from cadenza.callbacks.export import Call, check_export
from cadenza.dialects.supergradients.callback import Callback, PhaseContext
from cadenza.dialects.supergradients.environment import multi_process_safe
from cadenza.dialects.supergradients.registry import register_callback

__all__ = [
    "ModelConversionCheckCallback",
    "TimerCallback",
    "TrainingStageSwitchCallbackBase",
    "YoloXTrainingStageSwitchCallback",
]


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
        model_name: str,
        input_dimensions: Sequence[int] = (3, 224, 224),
        primary_batch_size: int = 1,
        rtol: float = 1e-3,
        atol: float = 1e-5,
        **options: Any,
    ) -> None:
        known = {"opset_version", "do_constant_folding", "input_names", "output_names", "dynamic_axes"}
        for name in options.keys() - known:
            raise TypeError(f"ModelConversionCheckCallback has no argument {name!r}")
        self.model_name, self.input_dimensions = model_name, tuple(input_dimensions)
        self.primary_batch_size, self.rtol, self.atol = primary_batch_size, rtol, atol
        self.options = options
        self.result: Any = None

    @multi_process_safe
    def on_training_start(self, context: PhaseContext) -> None:
        with torch.random.fork_rng():
            inputs = torch.randn(self.primary_batch_size, *self.input_dimensions, device=context.device)
        axes: Mapping[str, Any] = self.options.get("dynamic_axes") or {}
        self.result = check_export(
            context.net, Call((inputs,)), None, rtol=self.rtol, atol=self.atol, dynamic_batch=bool(axes)
        )


@register_callback()
class TimerCallback(Callback):
    """Logs how long forward, gradient and batch took in milliseconds, and the loader and the epoch, once an epoch."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.marks: dict[str, float] = {}

    def on_train_loader_start(self, context: PhaseContext) -> None:
        self.sums, self.counts = {}, {}
        self.marks["epoch"] = self.marks["loader"] = self._now(context)

    def on_train_batch_start(self, context: PhaseContext) -> None:
        self.marks["batch"] = self.marks["forward"] = self._now(context)
        self._add("train_loader_time_ms", self.marks["loader"], self.marks["batch"])

    def on_train_batch_loss_end(self, context: PhaseContext) -> None:
        self.marks["gradient"] = self._now(context)
        self._add("train_forward_time_ms", self.marks["forward"], self.marks["gradient"])

    def on_train_batch_gradient_step_end(self, context: PhaseContext) -> None:
        self._add("train_gradient_time_ms", self.marks["gradient"], self._now(context))

    def on_train_batch_end(self, context: PhaseContext) -> None:
        self.marks["loader"] = self._now(context)
        self._add("train_batch_total_time_ms", self.marks["batch"], self.marks["loader"])

    def on_train_loader_end(self, context: PhaseContext) -> None:
        for name, total in self.sums.items():
            context.sg_logger.add_scalar(f"timer/{name}", total / self.counts[name], context.epoch)
        seconds = self._now(context) - self.marks["epoch"]
        context.sg_logger.add_scalar("timer/epoch_total_time_sec", seconds, context.epoch)

    def _add(self, name: str, start: float, end: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + (end - start) * 1000.0
        self.counts[name] = self.counts.get(name, 0) + 1

    def _now(self, context: PhaseContext) -> float:
        if context.device.type == "cuda":
            torch.cuda.synchronize(context.device)  # a time without waiting would be that of the launch
        return perf_counter()
