"""What a failed recording must put back: everything on the host that a step may have touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cadenza.execution.recorded.module_attributes import (
    containers,
    generators_of,
    same,
    same_content,
)
from cadenza.foundation.generators import state_of
from cadenza.foundation.kept_state import KeptState, content
from cadenza.foundation.rng import rng_state, same_state
from cadenza.foundation.torch_private import BUFFERS, PARAMETERS, TABLES, tables_of

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.run import Run


class Rollback:
    """The state of a run on the host before a step, as it can be put back."""

    def __init__(self, run: Run, callbacks: tuple[Callback, ...]) -> None:
        self.run = run
        self.fields, self.weight = run._state.of_step(), run.loss_weight
        self.steps = run.clock.steps
        self.parameters = parameters_of(run)
        self.state = state = KeptState()
        self.gradients = state.keep_gradients(self.parameters)
        for optimizer in run.optimizers:
            state.keep(optimizer.state)
        self.states = [{p: state.keep(one) for p, one in optimizer.state.items()} for optimizer in run.optimizers]
        self.attributes = [(one, state.keep(vars(one))) for one in modules_of(run)]
        self.contents = [
            (one, name, held, state.keep(held)) for one in modules_of(run) for name, held in containers(one)
        ]
        self.tables = [
            (one, {name: state.keep(table) for name, table in tables_of(one, PARAMETERS, BUFFERS).items()})
            for one in modules_of(run)
        ]
        self.generators = [(*held, state_of(held[-1])) for held in generators_of(modules_of(run))]
        state.keep_generators(generator for _, _, generator, _ in self.generators)
        for callback in callbacks:
            _keep_one_level(state, vars(callback))
        state.keep_rng(run.device)

    def put_back(self) -> None:
        self.run._state.restore_step(self.fields)
        self.run.loss_weight = self.weight
        self.run.clock.steps = self.steps
        self.state.restore()

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
            if on_host and name in self.state.rng and not same_state(self.state.rng[name], now.get(name)):
                return f"the step draws from {said} on the host"
        return None


def parameters_of(run: Run) -> list[Tensor]:
    """The parameters of the model and of all optimizers, each once."""
    groups = (group for optimizer in run.optimizers for group in optimizer.param_groups)
    found: dict[int, Tensor] = {id(p): p for p in run.module.parameters()}
    found.update({id(p): p for group in groups for p in group["params"]})
    return list(found.values())


def modules_of(run: Run) -> list[nn.Module]:
    """The modules of the model and of the criterion, if it is one."""
    parts = [run.module, *([run.criterion] if isinstance(run.criterion, nn.Module) else [])]
    return [inner for part in parts for inner in part.modules()]


def _keep_one_level(state: KeptState, attributes: dict[str, Any]) -> None:
    """The attributes of a callback, and what is in containers and plain objects of ours among them."""
    for value in state.keep(attributes).values():
        if isinstance(value, dict | list | set):
            state.keep(value)
        elif _is_ours(value):
            state.keep(vars(value))


def _is_ours(value: Any) -> bool:
    if isinstance(value, Tensor | nn.Module | Optimizer) or not hasattr(value, "__dict__") or callable(value):
        return False
    return type(value).__module__.startswith("cadenza.callbacks")


def _same_states(optimizer: Optimizer, before: dict[Any, dict[str, Any]]) -> bool:
    if optimizer.state.keys() != before.keys():
        return False
    return all(
        state.keys() == before[p].keys() and all(before[p][name] is state[name] for name in state)
        for p, state in optimizer.state.items()
    )
