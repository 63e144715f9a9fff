"""Keeps the state of a training in memory and restores it in place: tensors and dicts stay the same objects."""

from __future__ import annotations

import copy
import operator
from collections import deque
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cadenza.foundation.generators import set_state, state_of
from cadenza.foundation.module_modes import Flags, flags_of
from cadenza.foundation.rng import rng_state, set_rng_state
from cadenza.foundation.torch_private import buffers_in, parameters_in
from cadenza.foundation.tree import entries, walk

_FIXED = (str, bytes, bool, int, float, complex, type(None), tuple, list, Mapping, Tensor, nn.Module, Optimizer)


class KeptState:
    """What is kept here is as it was after ``restore``, any number of times. The values of tensors are copied to
    ``place``, by default to where they are. As a context manager it restores at the end.

    >>> model, kept = nn.Linear(2, 1), KeptState()
    >>> before, weight = model.weight.clone(), model.weight
    >>> kept.keep_tree(model._parameters)
    >>> _ = nn.init.zeros_(model.weight)
    >>> kept.restore()
    >>> torch.equal(model.weight, before), model.weight is weight
    (True, True)
    """

    def __init__(self, place: torch.device | None = None) -> None:
        self.place = place
        self.values: list[tuple[Tensor, Tensor]] = []
        self.rng: dict[str, Any] = {}
        self._device: torch.device | None = None
        self._containers: list[tuple[Any, Any, bool]] = []
        self._gradients: list[tuple[Tensor, Tensor | None]] = []
        self._generators: list[tuple[Any, Any]] = []
        self._stateful: list[tuple[Any, Any]] = []
        self._modes: Flags = []

    # What is kept -----------------------------------------------------------------------------------------------------

    def keep(self, container: Any, *, added: bool = False) -> Any:
        """A dict, list, set or deque: which objects it holds. With ``added``, what a dict gets later stays in it."""
        inside = content(container)
        self._containers.append((container, inside, added))
        return inside

    def keep_tree(self, tree: Any, *, added: bool = False, apart: Any = None) -> None:
        """All dicts and lists in ``tree`` and the values of its tensors; of objects of other kinds a copy. Of the list
        ``apart`` only which objects it holds."""
        for _, node in walk(tree, lambda one: None if one is apart else entries(one)):
            if isinstance(node, Tensor):
                self.keep_values([node])
            elif isinstance(node, MutableMapping | list):
                inside = self.keep(node, added=added)
                for key, value in inside.items() if isinstance(inside, dict) else enumerate(inside):
                    if not isinstance(value, _FIXED) and not callable(value):
                        inside[key] = _Copy(value)

    def keep_values(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.values.append((tensor, tensor.detach().to(self.place or tensor.device, copy=True)))

    def keep_buffers(self, module: nn.Module) -> None:
        for one in module.modules():
            self.keep_tree(buffers_in(one), added=True)

    def keep_gradients(self, parameters: Iterable[Tensor]) -> list[Tensor | None]:
        """Which tensors are the gradients; what is in them is not copied."""
        kept = [(parameter, parameter.grad) for parameter in parameters]
        self._gradients += kept
        return [gradient for _, gradient in kept]

    def keep_settings(self, optimizer: Optimizer, *, added: bool = False) -> None:
        """What each parameter group is set to."""
        for group in optimizer.param_groups:
            self.keep_tree(group, added=added, apart=group["params"])

    def keep_rng(self, device: torch.device) -> None:
        self.rng, self._device = rng_state(device), device

    def keep_generators(self, generators: Iterable[Any]) -> None:
        self._generators += [(generator, state_of(generator)) for generator in generators]

    def keep_training(self, module: nn.Module, optimizers: Sequence[Optimizer], device: torch.device) -> None:
        """All that a few steps change: weights, buffers, gradients, modes, optimizers, random numbers."""
        self.keep_rng(device)
        self._modes = flags_of(module)
        for one in module.modules():
            self.keep_tree(parameters_in(one), added=True)
        self.keep_buffers(module)
        self.keep_gradients(module.parameters())
        for optimizer in optimizers:
            self.keep_settings(optimizer)
            self.keep_tree(optimizer.state)

    def keep_stateful(self, objects: Iterable[Any]) -> None:
        """Objects that can be restored by their ``state_dict``."""
        stateful = [one for one in objects if hasattr(one, "state_dict") and hasattr(one, "load_state_dict")]
        self._stateful += [(one, copy.deepcopy(one.state_dict())) for one in stateful]

    # And restored -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        for module, training in self._modes:
            module.training = training
        for container, inside, added in self._containers:
            refill(container, inside, added=added)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        write_back(self.values)
        for generator, state in self._generators:
            set_state(generator, state)
        for one, state in self._stateful:
            one.load_state_dict(copy.deepcopy(state))
        set_rng_state(self.rng, self._device)


class _Copy:
    """Stands for an object that may be changed in place."""

    def __init__(self, value: Any) -> None:
        self.value = copy.deepcopy(value)


def buffers_kept(module: nn.Module, place: torch.device | None = None) -> KeptState:
    """Whatever a forward inside does to the buffers of ``module``, such as running statistics, is undone afterwards."""
    kept = KeptState(place)
    kept.keep_buffers(module)
    return kept


# Containers and tensors -----------------------------------------------------------------------------------------------


def content(container: Any) -> Any:
    """What is in ``container``, as it is now."""
    return dict(container) if isinstance(container, Mapping) else list(container)


def refill(container: Any, inside: Any, *, added: bool = False) -> None:
    """``container`` holds ``inside`` again, and nothing else, or with ``added`` whatever it got since. One that holds
    the same objects as then is left alone."""
    if isinstance(inside, dict):
        now, before = container.items(), inside.items()
        same = all(key is old and value is one for (key, value), (old, one) in zip(now, before, strict=False))
    else:
        same = all(map(operator.is_, container, inside))
    if same and len(container) == len(inside):
        return
    if not (added and isinstance(inside, dict)):
        container.clear()
    if isinstance(inside, dict):
        container.update({key: _own(value) for key, value in inside.items()})
    else:
        (container.extend if isinstance(container, list | deque) else container.update)(map(_own, inside))


def _own(value: Any) -> Any:
    return copy.deepcopy(value.value) if isinstance(value, _Copy) else value


def write_back(values: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Gives each tensor its old value, but for those whose elements share memory: torch lets no step write there.

    >>> tensor, repeated = torch.ones(2), torch.ones(1).expand(2)
    >>> write_back([(tensor, torch.zeros(2)), (repeated, repeated.clone())])
    >>> tensor, repeated
    (tensor([0., 0.]), tensor([1., 1.]))
    """
    with torch.no_grad():
        for tensor, value in values:
            if not _repeats(tensor):
                tensor.copy_(value)


def _repeats(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
