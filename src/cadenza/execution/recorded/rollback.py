"""What a failed recording must put back: everything on the host that a step may have touched."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cadenza.execution.recorded.module_attributes import (
    TABLES,
    containers,
    content,
    generators_of,
    refill,
    same,
    same_content,
)
from cadenza.foundation.generators import set_state, state_of
from cadenza.foundation.rng import rng_state, same_state, set_rng_state

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.run import Run

_OF_RUN = ("_batch", "_output", "_loss", "_asked", "_held", "_had_held", "_skipped", "_forwarded", "_at", "_first")


class Kept:
    """The state of a run on the host before a step, as it can be put back."""

    def __init__(self, run: Run, callbacks: tuple[Callback, ...]) -> None:
        self.run = run
        self.fields = {name: getattr(run, name) for name in (*_OF_RUN, "loss_weight")}
        self.steps = run.clock.steps
        self.parameters = parameters_of(run)
        self.gradients = [parameter.grad for parameter in self.parameters]
        self.states = [{p: dict(state) for p, state in optimizer.state.items()} for optimizer in run.optimizers]
        self.attributes = [(one, dict(vars(one))) for one in modules_of(run)]
        self.contents = [(one, name, held, content(held)) for one in modules_of(run) for name, held in containers(one)]
        self.tables = [(one, _copies_of_tables(one)) for one in modules_of(run)]
        self.generators = [(*held, state_of(held[-1])) for held in generators_of(modules_of(run))]
        self.callbacks = [(one, {k: _copied(v) for k, v in vars(one).items()}) for one in callbacks]
        self.rng = rng_state(run.device)
        self.values: list[tuple[Tensor, Tensor]] = []
        """Tensors with what they held before, where a step is really done."""

    def put_back(self) -> None:
        run = self.run
        for name, value in self.fields.items():
            setattr(run, name, value)
        run.clock.steps = self.steps
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        for optimizer, states in zip(run.optimizers, self.states, strict=True):
            for parameter in list(optimizer.state):
                if parameter in states:
                    optimizer.state[parameter] = states[parameter]
                else:
                    del optimizer.state[parameter]
        for one, attributes in self.attributes:
            vars(one).clear()
            vars(one).update(attributes)
        for _, _, held, inside in self.contents:
            if not same_content(inside, content(held)):
                refill(held, inside)
        for one, tables in self.tables:
            for name, table in tables.items():
                vars(one)[name].clear()
                vars(one)[name].update(table)
        for _, _, generator, state in self.generators:
            set_state(generator, state)
        for callback, attributes in self.callbacks:
            vars(callback).clear()
            vars(callback).update(attributes)
        write_back(self.values)
        set_rng_state(self.rng, run.device)

    def what_changed(self) -> str | None:
        """What the step changed on the host, so that playing its record again would not do the same, if anything."""
        for optimizer, states in zip(self.run.optimizers, self.states, strict=True):
            if not _same_states(optimizer, states):
                return f"{type(optimizer).__name__} makes new state inside the step"
        for one, tables in self.tables:
            for name, table in tables.items():
                for key, tensor in vars(one)[name].items():
                    if table.get(key) is not tensor:
                        return f"{type(one).__name__} replaces its {key!r} in each step; change it in place"
        for one, attributes in self.attributes:
            for name, value in vars(one).items():
                if name not in TABLES and not same(attributes.get(name), value):
                    return f"{type(one).__name__} sets its attribute {name!r} in each step"
        for one, name, held, inside in self.contents:
            if not same_content(inside, content(held)):
                return f"{type(one).__name__} changes what is in its attribute {name!r} in each step"
        return self._what_was_drawn()

    def _what_was_drawn(self) -> str | None:
        """Draws from generators of the host cannot be recorded. On the CPU those of torch's own can, by a compiler."""
        for one, attribute, generator, state in self.generators:
            if not same_state(state, state_of(generator)):
                return f"{type(one).__name__} draws from the generator in its attribute {attribute!r}"
        now = rng_state(self.run.device)
        for name, said in (("python", "random"), ("numpy", "numpy.random"), ("torch", "torch's generator of the CPU")):
            on_host = name != "torch" or self.run.device.type != "cpu"
            if on_host and name in self.rng and not same_state(self.rng[name], now.get(name)):
                return f"the step draws from {said} on the host"
        return None


def write_back(values: list[tuple[Tensor, Tensor]]) -> None:
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


def parameters_of(run: Run) -> list[Tensor]:
    """The parameters of the model and of all optimizers, each once."""
    groups = (group for optimizer in run.optimizers for group in optimizer.param_groups)
    found: dict[int, Tensor] = {id(p): p for p in run.module.parameters()}
    found.update({id(p): p for group in groups for p in group["params"]})
    return list(found.values())


def tables_of(module: nn.Module, *names: str) -> dict[str, dict[str, Any]]:
    """Where it holds its parts; those of a scripted module cannot be replaced, so there is nothing to look at."""
    tables = {name: vars(module).get(name) for name in names}
    return {name: table for name, table in tables.items() if isinstance(table, dict)}


def _copies_of_tables(module: nn.Module) -> dict[str, dict[str, Any]]:
    return {name: dict(table) for name, table in tables_of(module, "_parameters", "_buffers").items()}


def modules_of(run: Run) -> list[nn.Module]:
    """The modules of the model and of the criterion, if it is one."""
    parts = [run.module, *([run.criterion] if isinstance(run.criterion, nn.Module) else [])]
    return [inner for part in parts for inner in part.modules()]


def _copied(value: Any) -> Any:
    """A value that the original does not change any more: containers and plain objects one level deep."""
    if isinstance(value, dict | list | set):
        return copy.copy(value)
    if isinstance(value, Tensor | nn.Module | Optimizer) or not hasattr(value, "__dict__") or callable(value):
        return value
    return copy.copy(value) if type(value).__module__.startswith("cadenza.callbacks") else value


def _same_states(optimizer: Optimizer, before: dict[Any, dict[str, Any]]) -> bool:
    if optimizer.state.keys() != before.keys():
        return False
    return all(
        state.keys() == before[p].keys() and all(before[p][name] is state[name] for name in state)
        for p, state in optimizer.state.items()
    )
