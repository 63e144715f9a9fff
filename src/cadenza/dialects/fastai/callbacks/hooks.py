"""Hooks on modules, held for the time of a fit."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cadenza.dialects.fastai.recorder import LearnerCallback
from cadenza.dialects.fastai.torch_core import flatten_model, in_channels, one_param, requires_grad, to_detach

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = [
    "ActivationStats", "Hook", "HookCallback", "Hooks", "dummy_batch", "dummy_eval", "hook_output", "hook_outputs",
    "layers_info", "model_sizes", "model_summary", "num_features_model",
]  # fmt: skip


LayerInformation = namedtuple("LayerInformation", ["Layer", "OutputSize", "Params", "Trainable"])


class _Held(AbstractContextManager[Any]):
    """What is removed when a ``with`` is left."""

    def remove(self) -> None:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        self.remove()


class Hook(_Held):
    """Keeps in ``stored`` what ``hook_func(module, input, output)`` returned last; left, it is removed.

    >>> layer = nn.Linear(2, 3)
    >>> with hook_output(layer) as hook:
    ...     _ = layer(torch.zeros(4, 2))
    >>> tuple(hook.stored.shape)
    (4, 3)
    """

    def __init__(
        self, m: nn.Module, hook_func: Callable[..., Any], is_forward: bool = True, detach: bool = True
    ) -> None:
        self.hook_func, self.detach, self.stored, self.removed = hook_func, detach, None, False
        add = m.register_forward_hook if is_forward else m.register_full_backward_hook
        self.hook: Any = add(self.hook_fn)

    def hook_fn(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self.detach:
            inputs, output = to_detach(inputs, cpu=False), to_detach(output, cpu=False)
        self.stored = self.hook_func(module, inputs, output)

    def remove(self) -> None:
        if not self.removed:
            self.hook.remove()
            self.removed = True


class Hooks(_Held):
    """One hook for each of several modules."""

    def __init__(
        self, ms: Iterable[nn.Module], hook_func: Callable[..., Any], is_forward: bool = True, detach: bool = True
    ) -> None:
        self.hooks = [Hook(module, hook_func, is_forward, detach) for module in ms]

    @property
    def stored(self) -> list[Any]:
        return [hook.stored for hook in self.hooks]

    def __getitem__(self, index: int) -> Hook:
        return self.hooks[index]

    def __len__(self) -> int:
        return len(self.hooks)

    def remove(self) -> None:
        for hook in self.hooks:
            hook.remove()


def hook_output(module: nn.Module, detach: bool = True, grad: bool = False) -> Hook:
    """Keeps what ``module`` puts out, or with ``grad`` the gradient of that."""
    return Hook(module, _put_out, is_forward=not grad, detach=detach)


def hook_outputs(modules: Iterable[nn.Module], detach: bool = True, grad: bool = False) -> Hooks:
    """The same for several modules."""
    return Hooks(modules, _put_out, is_forward=not grad, detach=detach)


def _put_out(module: nn.Module, inputs: Any, output: Any) -> Any:
    return output if isinstance(output, Tensor) else output[0] if len(output) == 1 else list(output)


class HookCallback(LearnerCallback):
    """Calls ``self.hook(module, input, output)`` in the forwards of a fit; what it returns is in ``self.hooks.stored``.
    Without ``modules``, every one that has none inside and has a weight."""

    def __init__(self, learn: Learner, modules: Sequence[nn.Module] | None = None, do_remove: bool = True) -> None:
        super().__init__(learn)
        self.modules, self.do_remove = modules, do_remove

    def hook(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        raise NotImplementedError("fastai: a HookCallback has a method hook(module, input, output)")

    def on_train_begin(self, **kwargs: Any) -> None:
        if self.modules is None:
            self.modules = [one for one in flatten_model(self.learn._module) if hasattr(one, "weight")]
        self.hooks = Hooks(self.modules, self.hook)

    def on_train_end(self, **kwargs: Any) -> None:
        if self.do_remove:
            self.hooks.remove()


class ActivationStats(HookCallback):
    """Mean and deviation of what modules put out, in each training batch: ``stats[0]`` are the means, ``stats[1]`` the
    deviations, both by module and batch. They stay on their device until the end."""

    def on_train_begin(self, **kwargs: Any) -> None:
        super().on_train_begin(**kwargs)
        self._kept: list[list[tuple[Tensor, Tensor]]] = []

    def hook(self, module: nn.Module, inputs: Any, output: Any) -> tuple[Tensor, Tensor]:
        return output.mean(), output.std()

    def on_batch_end(self, train: bool, **kwargs: Any) -> None:
        if train:
            self._kept.append(self.hooks.stored)

    def on_train_end(self, **kwargs: Any) -> None:
        super().on_train_end(**kwargs)
        rows = [[torch.stack(pair) for pair in batch] for batch in self._kept]
        self.stats = torch.stack([torch.stack(batch) for batch in rows]).permute(2, 1, 0).cpu() if rows else None


def model_sizes(m: nn.Module, size: tuple[int, ...] = (64, 64)) -> list[torch.Size]:
    """The shapes that the parts of ``m`` put out for an image of ``size``."""
    with hook_outputs(m.children()) as hooks:
        dummy_eval(m, size)
    return [one.shape for one in hooks.stored]


def dummy_batch(m: nn.Module, size: tuple[int, ...] = (64, 64)) -> Tensor:
    """One image of noise for ``m``."""
    return torch.rand(1, in_channels(m), *size, device=one_param(m).device)


def dummy_eval(m: nn.Module, size: tuple[int, ...] = (64, 64)) -> Any:
    with torch.no_grad():
        return m.eval()(dummy_batch(m, size))


def num_features_model(m: nn.Module) -> int:
    """How many channels ``m`` puts out."""
    return int(model_sizes(m)[-1][1])


def layers_info(learn: Any) -> list[LayerInformation]:
    """What is known of each layer of a Learner's model, by a batch of its training data."""
    layers = [one for one in learn._module.modules() if not list(one.children())]
    with hook_outputs(layers) as hooks:
        learn.pred_batch(batch=next(iter(learn.data.train_dl)))
    found = []
    for layer, output in zip(layers, hooks.stored, strict=True):
        count = sum(parameter.numel() for parameter in layer.parameters())
        found.append(LayerInformation(type(layer).__name__, list(output.shape[1:]), count, bool(requires_grad(layer))))
    return found


def model_summary(learn: Any, n: int = 70) -> str:
    """One line for each layer: its kind, the shape that it puts out for a batch, and its parameters."""
    lines = [f"{one.Layer:<22} {one.OutputSize!s:<24} {one.Params:,}" for one in layers_info(learn)]
    return "\n".join([f"{'layer':<22} {'output shape':<24} parameters", "=" * n, *lines])
