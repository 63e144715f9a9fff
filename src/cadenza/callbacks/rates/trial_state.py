"""Keeps and restores what a few trial steps change, and makes a trainer beside another for them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cadenza.callback import Callback
from cadenza.foundation.rng import rng_state, set_rng_state
from cadenza.foundation.torch_private import buffers_in, parameters_in
from cadenza.main_callback import MainCallback

if TYPE_CHECKING:
    from cadenza.engine.trainer_state import Training
    from cadenza.trainer import Trainer


@dataclass(frozen=True)
class Kept:
    """A tensor, and its values at some time. They are kept in main memory, so that the device's is not used up."""

    tensor: Tensor
    values: Tensor


def keep(value: Any) -> Any:
    """A copy of ``value`` for ``give_back``: numbers, tensors, and containers of them."""
    if isinstance(value, Tensor):
        return Kept(value, value.detach().to("cpu", copy=True))
    if isinstance(value, dict):
        return {key: keep(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(keep(inner) for inner in value)
    return copy.deepcopy(value)


def give_back(kept: Any) -> Any:
    """What ``keep`` was given. Tensors are the same objects, with the values that they had."""
    if isinstance(kept, Kept):
        with torch.no_grad():
            kept.tensor.copy_(kept.values)
        return kept.tensor
    if isinstance(kept, dict):
        return {key: give_back(inner) for key, inner in kept.items()}
    if isinstance(kept, list | tuple) and not hasattr(kept, "_fields"):
        return type(kept)(give_back(inner) for inner in kept)
    return copy.deepcopy(kept)


class Snapshot:
    """Weights, buffers, gradients, train and eval flags, optimizers, random numbers, and where loader and scaler stand.

    >>> model = nn.Linear(2, 1)
    >>> before, snapshot = model.weight.clone(), Snapshot(model, [], torch.device("cpu"))
    >>> with torch.no_grad():
    ...     _ = model.weight.zero_()
    >>> snapshot.restore()
    >>> torch.equal(model.weight, before)
    True
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        device: torch.device,
        loader: Any = None,
        scaler: Any = None,
    ) -> None:
        self._random = rng_state(device)
        self._device = device
        self._modules = [
            (one, one.training, keep(dict(parameters_in(one))), keep(dict(buffers_in(one)))) for one in module.modules()
        ]
        self._gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
        self._optimizers = [(optimizer, settings_of(optimizer), _states(optimizer)) for optimizer in optimizers]
        self._generators = [(generator, generator.get_state()) for generator in _generators(loader)]
        stateful = [one for one in (loader, scaler) if hasattr(one, "state_dict") and hasattr(one, "load_state_dict")]
        self._stateful = [(one, copy.deepcopy(one.state_dict())) for one in stateful]

    def restore(self) -> None:
        """Puts everything back, any number of times."""
        for module, training, parameters, buffers in self._modules:
            module.training = training
            parameters_in(module).update(give_back(parameters))
            buffers_in(module).update(give_back(buffers))
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for optimizer, groups, states in self._optimizers:
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                for added in [key for key in group if key != "params" and key not in values]:
                    del group[added]
                group.update(give_back(values))
            optimizer.state.clear()
            for tensor, values in states:
                optimizer.state[tensor] = give_back(values)
        for generator, drawn in self._generators:
            generator.set_state(drawn)
        for one, state in self._stateful:
            one.load_state_dict(copy.deepcopy(state))
        set_rng_state(self._random, self._device)


@contextlib.contextmanager
def put_back(
    module: nn.Module, optimizers: Sequence[Optimizer], device: torch.device, loader: Any = None
) -> Iterator[None]:
    """Whatever is trained inside, everything is as before afterwards."""
    snapshot = Snapshot(module, optimizers, device, loader)
    try:
        yield
    finally:
        snapshot.restore()


def settings_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """A copy of what each parameter group is set to; ``give_back`` of it may be put into the group again."""
    return [keep({key: group[key] for key in group if key != "params"}) for group in optimizer.param_groups]


def _states(optimizer: Optimizer) -> list[tuple[Tensor, Any]]:
    return [(parameter, keep(state)) for parameter, state in optimizer.state.items()]


def _generators(loader: Any) -> list[torch.Generator]:
    """The generators from which a loader draws its order, other than the global one."""
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    found = [getattr(one, "generator", None) for one in (loader, sampler, inner)]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def main_callback(trainer: Trainer) -> MainCallback | None:
    """The main callback that was given to ``trainer``, if there is one."""
    return next((callback for callback in trainer.callbacks if isinstance(callback, MainCallback)), None)


def trainer_beside(training: Training, main: MainCallback | None, callbacks: Sequence[Callback]) -> Trainer:
    """Another trainer of the same model with the same optimizers, with a clock and a history of its own.

    A copy of ``main`` plays in it, since one instance plays in one run at a time.
    """
    from cadenza.trainer import Trainer

    return Trainer(
        training.module,
        training.optimizers,
        training.criterion,
        callbacks=[*([] if main is None else [copy.copy(main)]), *callbacks],
        device=training.device,
    )
