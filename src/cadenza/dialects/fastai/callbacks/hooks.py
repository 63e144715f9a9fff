"""Hooks on modules, held for the time of a fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from cadenza.data import to_device
from cadenza.dialects.fastai.learner_callback import LearnerCallback

if TYPE_CHECKING:
    from cadenza.dialects.fastai.learner import Learner

__all__ = ["ActivationStats", "Hook", "HookCallback", "Hooks", "hook_output", "hook_outputs", "model_summary"]


class Hook:
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
            inputs, output = _detached(inputs), _detached(output)
        self.stored = self.hook_func(module, inputs, output)

    def remove(self) -> None:
        if not self.removed:
            self.hook.remove()
            self.removed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Hooks:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def hook_output(module: nn.Module, detach: bool = True, grad: bool = False) -> Hook:
    """Keeps what ``module`` puts out, or with ``grad`` the gradient of that."""
    return Hook(module, _put_out, is_forward=not grad, detach=detach)


def hook_outputs(modules: Iterable[nn.Module], detach: bool = True, grad: bool = False) -> Hooks:
    """The same for several modules."""
    return Hooks(modules, _put_out, is_forward=not grad, detach=detach)


def _put_out(module: nn.Module, inputs: Any, output: Any) -> Any:
    return output if isinstance(output, Tensor) else output[0] if len(output) == 1 else list(output)


def _detached(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values.detach()
    return [_detached(value) for value in values] if isinstance(values, list | tuple) else values


class HookCallback(LearnerCallback):
    """Calls ``self.hook(module, input, output)`` in the forwards of a fit; what it returns is in ``self.hooks.stored``.
    Without ``modules``, every one that has none inside and has parameters."""

    def __init__(self, learn: Learner, modules: Sequence[nn.Module] | None = None, do_remove: bool = True) -> None:
        super().__init__(learn)
        self.modules, self.do_remove = modules, do_remove

    def hook(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        raise NotImplementedError("fastai: a HookCallback has a method hook(module, input, output)")

    def on_train_begin(self, **kwargs: Any) -> None:
        if self.modules is None:
            self.modules = [
                one for one in self.learn._module.modules() if not list(one.children()) and list(one.parameters())
            ]
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


def model_summary(learn: Any, n: int = 70) -> str:
    """One line for each layer: its kind, the shape that it puts out for a batch, and its parameters."""
    layers = [one for one in learn._module.modules() if not list(one.children())]
    weight, batch = next(learn._module.parameters()), next(iter(learn.data.train_dl))
    training = learn._module.training
    learn._module.eval()
    with hook_outputs(layers) as hooks, torch.no_grad():
        learn._module(to_device(batch[0], weight.device))
    learn._module.train(training)
    lines = [f"{'layer':<22} {'output shape':<24} parameters", "=" * n]
    for layer, output in zip(layers, hooks.stored, strict=True):
        count = sum(parameter.numel() for parameter in layer.parameters())
        lines.append(f"{type(layer).__name__:<22} {list(output.shape)!s:<24} {count:,}")
    return "\n".join(lines)
