"""What the layers of a model put out: centred or drifting, alive or dead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from cadenza.callback import Callback, Order
from cadenza.callbacks.measuring.gradient_stats import in_steps
from cadenza.clock import Duration
from cadenza.foundation.arguments import at_least_zero, texts
from cadenza.foundation.suggest import did_you_mean
from cadenza.foundation.tree import entries, tensors_of
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.run import Run

Modules: TypeAlias = Iterable[str] | Callable[[str, nn.Module], bool] | None


class ActivationStats(Callback):
    """Logs mean, standard deviation and share of values near zero of what modules put out in the training forward.

    The values of the module ``0`` are logged as ``train/activations/0/mean``, ``/std`` and ``/near_zero``. They are
    taken over all elements of its output (of all its outputs, if it is called several times; the deviation divides by
    their number), before a later layer can change it in place, and stay on their device until somebody reads them. The
    forward hooks are there only in the forwards that are looked at, and are removed however those end.

    ``every`` says at which steps, such as "50 steps": in the first batch of the 50th, the 100th and so on. ``modules``
    are names or patterns such as "encoder.*", or a function of name and module that says whether to look at it; None
    takes every module that has no other inside. A value is near zero if it is at most ``near_zero`` away from it.
    Looking opens a fused step.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> stats = ActivationStats(every="2 steps", modules=["1"])  # the ReLU
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[stats], device="cpu")
    >>> history = trainer.fit(tiny_loader(48), epochs=1)
    >>> [round(row["train/activations/1/near_zero"], 2) for row in history.iters]
    [0.52, 0.47, 0.52]
    """

    order = Order.MEASURE
    stages = frozenset({"train"})
    passive = True

    def __init__(self, every: str | Duration = "50 steps", *, modules: Modules = None, near_zero: float = 1e-3) -> None:
        self.every = in_steps(every)
        self.modules, self.near_zero = checked_modules(modules), checked_near_zero(near_zero)
        self._measured = -1
        self._warned = False

    def _logs(self, prefixes: Sequence[str]) -> list[str]:
        return ["train/activations/*"]

    def explain(self) -> str:
        return f"every {self.every}; near zero is up to {self.near_zero:g}"

    def before_train_epoch(self, run: Run) -> None:
        chosen(run.module, self.modules)  # a name that is none is refused now, not at the first step that is due

    def around_forward(self, run: Run) -> AbstractContextManager[None] | None:
        steps = run.clock.steps
        if (steps + 1) % self.every.amount or self._measured == steps:
            return None
        return self._look(run)

    @contextlib.contextmanager
    def _look(self, run: Run) -> Iterator[None]:
        with activation_stats(run.module, modules=self.modules, near_zero=self.near_zero) as found:
            yield
        self._measured = run.clock.steps
        run.log({f"train/activations/{at}/{name}": value for at, each in found.items() for name, value in each.items()})
        if not found and not self._warned:
            self._warned = True
            warn(f"{self.name} saw none of its modules play in the forward of {run.main.name}")

    def close(self) -> None:
        self._measured = -1


@contextlib.contextmanager
def activation_stats(
    model: nn.Module, *, modules: Modules = None, near_zero: float = 1e-3
) -> Iterator[dict[str, dict[str, Tensor]]]:
    """What the modules of ``model`` put out inside the ``with``; the dict is filled when it ends, with tensors, so that
    the device is not waited for.

    >>> model = nn.Sequential(nn.Identity(), nn.ReLU())
    >>> with activation_stats(model) as stats:
    ...     _ = model(torch.tensor([-1.0, 3.0]))
    >>> stats["0"]["mean"], stats["1"]["near_zero"]
    (tensor(1.), tensor(0.5000))
    """
    calls: dict[str, list[_Call]] = {}
    found: dict[str, dict[str, Tensor]] = {}
    watched = chosen(model, checked_modules(modules))
    near_zero = checked_near_zero(near_zero)

    def hook_for(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            tensor = floating(output)
            if tensor is not None:
                calls.setdefault(name, []).append(_Call(tensor, near_zero))

        return hook

    with contextlib.ExitStack() as hooks:
        for name, module in watched.items():
            hooks.callback(module.register_forward_hook(hook_for(name)).remove)
        yield found
    with torch.no_grad():
        found.update({name: _together(several) for name, several in calls.items()})


class _Call:
    """What is needed of one output, still on its device."""

    def __init__(self, output: Tensor, near_zero: float) -> None:
        with torch.no_grad():
            values = output.detach()
            values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
            self.size = values.numel()
            self.mean = values.mean()
            self.variance = values.var(correction=0)
            self.near = torch.count_nonzero(values.abs() <= near_zero)


def _together(calls: list[_Call]) -> dict[str, Tensor]:
    """The values over all calls of a module, weighted by their sizes."""
    size = sum(call.size for call in calls)
    mean = torch.stack([call.mean * call.size for call in calls]).sum() / size
    spread = [(call.variance + (call.mean - mean).square()) * call.size for call in calls]
    near = torch.stack([call.near for call in calls]).sum()
    return {"mean": mean, "std": (torch.stack(spread).sum() / size).sqrt(), "near_zero": near / size}


def floating(output: Any) -> Tensor | None:
    """The first tensor of real numbers in what a module returned, if there is one that is not empty."""
    return next((one for one in tensors_of(output, entries) if one.is_floating_point() and one.numel()), None)


# Arguments ----------------------------------------------------------------------------------------------------------


def chosen(model: nn.Module, modules: Modules) -> dict[str, nn.Module]:
    """The modules to look at, by name; the model itself is called ``model``."""
    every = {name or "model": module for name, module in model.named_modules()}
    if modules is None:
        return {name: module for name, module in every.items() if not any(True for _ in module.children())}
    if callable(modules):
        return {name: module for name, module in every.items() if modules(name, module)}
    wanted = {name for pattern in modules for name in _matching(pattern, every)}
    return {name: module for name, module in every.items() if name in wanted}


def _matching(pattern: str, names: Collection[str]) -> list[str]:
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        hint = did_you_mean(pattern, names, ".", cutoff=0.4)
        raise ValueError(f"the model has no module {pattern!r}{hint} Known: {', '.join(names)}")
    return found


def checked_modules(modules: Modules) -> Modules:
    if modules is None or callable(modules):
        return modules
    return texts("modules", modules, "a list of names or patterns, a function of name and module, or None")


def checked_near_zero(near_zero: float) -> float:
    at_least_zero("near_zero", near_zero)
    return near_zero
