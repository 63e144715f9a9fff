"""A moment of a training: everything that shapes what it does from there on, copied to the host and put back.

It is kept in tensors and plain containers only, so that a file of it can be read without running code.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.callback import Callback, Order
from cadenza.data import length_of
from cadenza.foundation.rng import rng_state
from cadenza.foundation.tree import Pairs, entries, leaves, map_with_path, with_dicts

if TYPE_CHECKING:
    from cadenza.run import Run

_PLAIN = bool | int | float | complex | str | bytes | None | torch.dtype | torch.device | torch.Size


class CannotKeep(TypeError):
    """Something on the way is neither a tensor nor a plain value."""


# Copies on the host -------------------------------------------------------------------------------------------------


def to_host(value: Any, what: str = "this", into: Any = None) -> Any:
    """A copy of ``value`` on the host. A copy from a device is only queued: wait for the device before reading it.

    ``into`` is an earlier copy that is no longer needed; tensors of the same form are written into its memory, which
    costs a fraction of new memory.

    >>> to_host({"x": [torch.ones(2), 3]})
    {'x': [tensor([1., 1.]), 3]}
    """
    earlier = {} if into is None else dict(leaves(into, _contents))

    def copied(path: tuple[Any, ...], leaf: Any) -> Any:
        odd = next((key for key in path if not isinstance(key, _PLAIN | tuple)), leaf)
        if isinstance(odd, Tensor):
            return _tensor_to_host(odd.detach(), earlier.get(path))
        if isinstance(odd, Counter):  # the milestones of a scheduler
            return Counter(odd)
        if isinstance(odd, _PLAIN):
            return odd
        where = what + "".join(f"[{key!r}]" for key in path)
        raise CannotKeep(f"{where} is a {type(odd).__name__}, and only tensors and plain values can be kept")

    return map_with_path(value, copied, _contents, with_dicts)


def _tensor_to_host(tensor: Tensor, into: Any) -> Tensor:
    if isinstance(into, Tensor) and into.shape == tensor.shape and into.dtype == tensor.dtype:
        return into.copy_(tensor, non_blocking=True)
    return tensor.clone() if tensor.device.type == "cpu" else tensor.to("cpu", non_blocking=True)


def _contents(value: Any) -> Pairs | None:
    opened = type(value) in (list, tuple) or (isinstance(value, Mapping) and not isinstance(value, Counter))
    return entries(value) if opened else None


# A moment -----------------------------------------------------------------------------------------------------------


def capture(run: Run, into: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that shapes what a training does from here on. ``into`` is an earlier moment that is let go of."""
    module, before = run.module, into.get
    return {
        "rng": rng_state(run.device),
        "tensors": to_host(dict(_tensors(module)), "the model", before("tensors")),
        "frozen": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
        "training": {name: inner.training for name, inner in module.named_modules()},
        "gradients": to_host(
            {name: p.grad for name, p in module.named_parameters() if p.grad is not None},
            "a gradient",
            before("gradients"),
        ),
        "optimizers": to_host(
            [optimizer.state_dict() for optimizer in run.optimizers], "an optimizer", before("optimizers")
        ),
        "schedulers": [to_host(scheduler.state_dict(), "a scheduler") for scheduler in run.schedulers],
        # The state of a scaler cannot be had without waiting for the device.
        "scaler": None if run.scaler is None else to_host(run.scaler.state_dict(), "the scaler"),
        "callbacks": {
            c.name: to_host(c.state_dict(), c.name, before("callbacks", {}).get(c.name))
            for c in run.callbacks
            if plays_again(c)
        },
        "clock": run.clock.state_dict(),
        "num_epochs": run.num_epochs,
        "last_step": sys.maxsize if run.num_steps is None else run.num_steps,
        "length": None if run.loader is None else length_of(run.loader),
    }


def restore(run: Run, moment: dict[str, Any], callbacks: tuple[Callback, ...] = ()) -> None:
    """Puts a training back to ``moment``."""
    module = run.module
    with torch.no_grad():
        here = dict(_tensors(module))
        if here.keys() != moment["tensors"].keys():
            odd = sorted(here.keys() ^ moment["tensors"].keys())
            raise ValueError(f"this is not the model of the replay file: they differ in {', '.join(odd[:5])}")
        for name, tensor in here.items():
            tensor.copy_(moment["tensors"][name])
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in moment["frozen"])
        gradient = moment["gradients"].get(name)
        parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
    for name, inner in module.named_modules():
        inner.training = moment["training"].get(name, inner.training)
    for part, saved in ((run.optimizers, moment["optimizers"]), (run.schedulers, moment["schedulers"])):
        for one, state in zip(part, saved, strict=True):
            one.load_state_dict(to_host(state))  # a copy: what is loaded is changed in place later
    if moment["scaler"] is not None and run.scaler is not None:
        run.scaler.load_state_dict(moment["scaler"])
    for callback in callbacks:
        if callback.name in moment["callbacks"]:
            callback.load_state_dict(to_host(moment["callbacks"][callback.name]))
    run.clock.load_state_dict(moment["clock"])


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and all buffers by name, those too that a state dict leaves out."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def plays_again(callback: Callback) -> bool:
    """Whether a callback takes part when a stretch is played again: those who measure, report and save do not, unless
    they set a learning rate by what they measure."""
    inner = getattr(callback, "callback", callback)  # what a When limits
    shapes = callback.order < Order.MEASURE or any(owned.startswith("lr") for owned in callback.owns)
    return shapes and getattr(inner, "replayed", True) and not hasattr(callback, "save")
