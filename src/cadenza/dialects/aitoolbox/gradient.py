"""Callbacks that change gradients or show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from cadenza.callback import Callback
from cadenza.callbacks import GradientClip
from cadenza.callbacks.training.clip import clip_gradients, trained_parameters
from cadenza.dialects.aitoolbox.abstract import AbstractCallback, AbstractExperimentCallback
from cadenza.dialects.aitoolbox.folders import draw, folder_of, upload

if TYPE_CHECKING:
    from cadenza.run import Run

__all__ = ["GradDistributionPlot", "GradNormClip", "GradValueClip", "GradientCallbackBase", "GradientStatsPrint"]

Layers = Callable[[nn.Module], Sequence[nn.Module]]


class GradientCallbackBase(AbstractCallback):
    """A callback that plays where there are gradients."""

    __dialect_base__ = True

    def __init__(self, callback_name: str, execution_order: int = 0) -> None:
        super().__init__(callback_name, execution_order)

    def on_train_loop_registration(self) -> None:
        self.train_loop_obj.grad_cb_used = True


class _EachOptimizer(GradientClip):
    """Clips the parameters of each optimizer by themselves."""

    def before_step(self, run: Run) -> None:
        for optimizer in run.optimizers:
            clip_gradients(trained_parameters([optimizer]), norm=self.norm, value=self.value, norm_type=self.norm_type)


class Clips(GradientCallbackBase):
    """Clips gradients before a step: Cadenza's ``GradientClip`` does it, with ``limits``."""

    def __init__(self, callback_name: str, **limits: Any) -> None:
        super().__init__(callback_name)
        self.native = _EachOptimizer(**limits)
        self.native.foreign = self  # type: ignore[attr-defined]

    def __cadenza_callbacks__(self, others: Sequence[Callback]) -> list[Callback]:
        return [*super().__cadenza_callbacks__(others), self.native]


class GradValueClip(Clips):
    """Bounds each element of the gradients before a step: Cadenza's ``GradientClip(value=...)``."""

    def __init__(self, max_grad_value: float) -> None:
        super().__init__("Clip gradients by value", value=max_grad_value)


class GradNormClip(Clips):
    """Scales the gradients so that their norm is at most this, before a step: ``GradientClip(norm=...)``."""

    def __init__(self, max_grad_norm: float, **kwargs: Any) -> None:
        super().__init__("Clip gradients by norm", norm=max_grad_norm, **kwargs)


class HoldsGradients:
    """Holds the gradients of the last backward, which the loop lets go of after the step."""

    train_loop_obj: Any
    model_layers_extract_def: Layers
    held: Mapping[int, Tensor | None] = MappingProxyType({})

    def on_after_gradient_update(self, optimizer_idx: int) -> None:
        self.held = {id(parameter): parameter.grad for parameter in self.train_loop_obj.model.parameters()}

    def layer_gradients(self) -> dict[str, Tensor]:
        """The gradients of the weights of the chosen layers that have one, by the names of the layers."""
        model = self.train_loop_obj.model
        names = {id(module): name for name, module in model.named_modules()}
        layers = enumerate(self.model_layers_extract_def(model))
        found = {
            names.get(id(one)) or f"layer {n}": self.held.get(id(getattr(one, "weight", None))) for n, one in layers
        }
        return {name: gradient.detach() for name, gradient in found.items() if gradient is not None}


class GradientStatsPrint(HoldsGradients, AbstractCallback):
    """Prints mean, standard deviation and share of zeros of the gradients of chosen layers: at the end of each epoch,
    those of its last batch, and with ``on_every_grad_update`` after each backward, too."""

    def __init__(self, model_layers_extract_def: Layers, on_every_grad_update: bool = False) -> None:
        super().__init__("Print gradient statistics")
        self.model_layers_extract_def, self.on_every_grad_update = model_layers_extract_def, on_every_grad_update

    def gradients_report(self) -> None:
        for name, gradient in self.layer_gradients().items():
            spread = float(gradient.std()) if gradient.numel() > 1 else 0.0
            zeros = float((gradient == 0).float().mean())
            print(f"{name}: mean {float(gradient.mean()):.3e}, std {spread:.3e}, zeros {zeros:.1%}")

    def on_after_gradient_update(self, optimizer_idx: int) -> None:
        super().on_after_gradient_update(optimizer_idx)
        if self.on_every_grad_update:
            self.gradients_report()

    def on_epoch_end(self) -> None:
        self.gradients_report()


class GradDistributionPlot(HoldsGradients, AbstractExperimentCallback):
    """Draws the distribution of the gradients of chosen layers once an epoch, those of its last batch. ``details`` are
    those of the experiment, as ``AbstractExperimentCallback`` takes them."""

    def __init__(
        self, model_layers_extract_def: Layers, grad_plots_dir_name: str = "grad_distribution",
        file_format: str = "png", *details: Any, **named: Any,
    ) -> None:  # fmt: skip
        super().__init__("Plot the distribution of gradients", *details, **named)
        self.device_idx_execution = 0
        if file_format not in ("png", "pdf"):
            raise ValueError(f"file_format is 'png' or 'pdf', not {file_format!r}")
        self.model_layers_extract_def = model_layers_extract_def
        self.grad_plots_dir_name, self.file_format = grad_plots_dir_name, file_format

    def on_train_loop_registration(self) -> None:
        self.try_infer_experiment_details(infer_cloud_details=True)

    def on_epoch_end(self) -> None:
        found = {name: gradient.flatten().cpu().numpy() for name, gradient in self.layer_gradients().items()}
        panels = {name: lambda axes, values=values: axes.hist(values, bins=60) for name, values in found.items()}
        if panels:
            folder = folder_of(self) / "results" / self.grad_plots_dir_name
            upload(self, draw(folder / f"epoch_{self.train_loop_obj.epoch}.{self.file_format}", panels))
