"""Callbacks that change gradients or show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from cadenza.callbacks import GradientClip
from cadenza.callbacks.figures import new_figure, write_figure
from cadenza.dialects.aitoolbox.abstract import AbstractCallback, AbstractExperimentCallback, NativeCallback
from cadenza.dialects.aitoolbox.folders import folder_of

__all__ = ["GradDistributionPlot", "GradNormClip", "GradValueClip", "GradientStatsPrint"]

Layers = Callable[[nn.Module], Sequence[nn.Module]]


class GradValueClip(NativeCallback):
    """Bounds each element of the gradients before a step: Cadenza's ``GradientClip(value=...)``."""

    def __init__(self, max_grad_value: float) -> None:
        super().__init__("Clip gradients by value", GradientClip(value=max_grad_value))


class GradNormClip(NativeCallback):
    """Scales all gradients so that their norm is at most this, before a step: ``GradientClip(norm=...)``."""

    def __init__(self, max_grad_norm: float, **kwargs: Any) -> None:
        super().__init__("Clip gradients by norm", GradientClip(norm=max_grad_norm, **kwargs))


def layer_gradients(model: nn.Module, layers: Layers) -> list[tuple[str, Tensor]]:
    """The gradients of the weights of the chosen layers that have one, with the names of the layers."""
    names = {id(module): name for name, module in model.named_modules()}
    found = []
    for number, layer in enumerate(layers(model)):
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.grad is not None:
            found.append((names.get(id(layer)) or f"layer {number}", weight.grad.detach()))
    return found


class GradientStatsPrint(AbstractCallback):
    """Prints mean, standard deviation and share of zeros of the gradients of chosen layers, every so many batches."""

    def __init__(self, model_layers_extract_def: Layers, stats_eval_freq: int = 1) -> None:
        super().__init__("Print gradient statistics")
        if stats_eval_freq < 1:
            raise ValueError(f"stats_eval_freq is a number of batches of at least 1, not {stats_eval_freq!r}")
        self.model_layers_extract_def, self.stats_eval_freq = model_layers_extract_def, stats_eval_freq

    def on_after_gradient_update(self, optimizer_idx: int) -> None:
        loop = self.train_loop_obj
        if optimizer_idx == 0 and (loop.total_iteration_idx + 1) % self.stats_eval_freq == 0:
            for name, gradient in layer_gradients(loop.model, self.model_layers_extract_def):
                spread = float(gradient.std()) if gradient.numel() > 1 else 0.0
                zeros = float((gradient == 0).float().mean())
                print(f"{name}: mean {float(gradient.mean()):.3e}, std {spread:.3e}, zeros {zeros:.1%}")


class GradDistributionPlot(AbstractExperimentCallback):
    """Draws the distribution of the gradients of chosen layers once an epoch, those of its last batch. ``details`` are
    those of the experiment, as ``AbstractExperimentCallback`` takes them."""

    def __init__(
        self,
        model_layers_extract_def: Layers,
        grad_plots_dir_name: str = "grad_distribution",
        file_format: str = "png",
        *details: Any,
        **named: Any,
    ) -> None:
        super().__init__("Plot the distribution of gradients", *details, **named)
        self.execution_order, self.device_idx_execution = 97, 0
        if file_format not in ("png", "pdf"):
            raise ValueError(f"file_format is 'png' or 'pdf', not {file_format!r}")
        self.model_layers_extract_def = model_layers_extract_def
        self.grad_plots_dir_name, self.file_format = grad_plots_dir_name, file_format
        self.kept: list[tuple[str, Tensor]] = []

    def on_train_loop_registration(self) -> None:
        self.try_infer_experiment_details()

    def on_after_gradient_update(self, optimizer_idx: int) -> None:
        found = layer_gradients(self.train_loop_obj.model, self.model_layers_extract_def)
        self.kept = [(name, gradient.cpu().clone()) for name, gradient in found]

    def on_epoch_end(self) -> None:
        if not self.kept:
            return
        figure = new_figure(5.0, 2.5 * len(self.kept))
        for (name, gradient), axes in zip(self.kept, figure.subplots(len(self.kept), squeeze=False)[:, 0], strict=True):
            axes.hist(gradient.flatten().numpy(), bins=60)
            axes.set_title(name)
        folder = folder_of(self) / "results" / self.grad_plots_dir_name
        folder.mkdir(parents=True, exist_ok=True)
        write_figure(figure, folder / f"epoch_{self.train_loop_obj.epoch}.{self.file_format}")
