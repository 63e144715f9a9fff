"""The form in which an optimizer is stepped: its own, or one that a recorded step can hold.

A recorded step must find learning rates in tensors and may not read the host. Between two steps the optimizer is as the
user made it: ``group["lr"]`` is the number that schedules set and callbacks read, and ``state_dict()`` is that of the
user's form, so that a checkpoint does not depend on how steps are executed.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from cadenza.execution.recorded.chunked_adam import step_in_parts
from cadenza.execution.step import needs_closure
from cadenza.foundation.torch_private import (
    foreach_add,
    foreach_add_,
    foreach_mul,
    foreach_mul_,
    foreach_neg,
    foreach_sub_,
    has_step_hooks,
    keep_quiet_about_capturable,
    note_step,
    pass_on_scheduler_mark,
    step_traced,
)

KINDS = {
    "fused": "torch's fused form: one kernel, other rounding",
    "foreach": "torch's foreach form",
    "capturable": "torch's capturable form: its step count and rates are tensors, other rounding",
    "tensor momentum": "torch's capturable form, one parameter after the other, with its momentum in a tensor",
    "tensor sgd": "a form in which rate and momentum are tensors: other rounding",
}
_TENSOR_RATE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")
"""Those of torch whose capturable form takes the learning rate as a tensor."""

_COUNTS = {"step", "mu_product"}
"""What optimizers count for each parameter: on the host, or on the device in a form that is captured."""


class Form:
    """One optimizer in another form, from ``begin`` to ``end``."""

    def __init__(self, optimizer: Optimizer, kind: str, device: torch.device, *, tensors: bool = True) -> None:
        self.optimizer, self.kind, self.device = optimizer, kind, device
        self.rates_as_tensors = tensors
        self.version = 0
        self.active = False
        self.dormant = False
        """Whether ``step`` is the user's own for the moment, as between two compiled steps."""
        self.traced = False
        self._undo: list[Callable[[], None]] = []
        self._rates: dict[tuple[int, str], tuple[float, Tensor]] = {}
        self._flags = {name: flag for name, flag in _FLAGS[kind].items() if tensors or name != "capturable"}

    def words(self) -> str:
        return f"{type(self.optimizer).__name__} is stepped in {KINDS[self.kind]}"

    # Putting on and off ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """From here on ``optimizer.step()`` is this form, whoever calls it."""
        optimizer = self.optimizer
        inner, had = optimizer.step, vars(optimizer).get("step")
        self.active = True
        self._adopt()

        def step(_: Optimizer, closure: Any = None) -> Any:
            return self._step(inner) if self.active and not self.dormant and closure is None else inner(closure)

        pass_on_scheduler_mark(inner, step)
        mine = types.MethodType(step, optimizer)
        optimizer.step = mine  # type: ignore[method-assign]
        keep_quiet_about_capturable(optimizer)
        hooks = (
            optimizer.register_state_dict_post_hook(lambda _, state: self._as_the_users(state)),
            optimizer.register_load_state_dict_post_hook(lambda _: self._adopt()),
        )
        self._undo = [hook.remove for hook in hooks]
        self._undo.append(lambda: self._put_back(mine, had))

    def _put_back(self, mine: Any, had: Any) -> None:
        if vars(self.optimizer).get("step") is not mine:
            return  # a scheduler has wrapped it since; it only passes on from here
        if had is None:
            del self.optimizer.step
        else:
            self.optimizer.step = had  # type: ignore[method-assign]

    def end(self) -> None:
        """The optimizer is the user's again."""
        if not self.active:
            return
        self.active = False
        for undo in self._undo:
            undo()
        self._undo = []
        for state, group in self._states():
            if self.device.type != "cpu" and not (group.get("capturable") or group.get("fused")):
                for name in _COUNTS & state.keys():
                    state[name] = state[name].cpu()  # waits for the device, once

    def _adopt(self) -> None:
        """Brings counts of steps to where this form looks for them; after something was loaded, once more."""
        self.version += 1
        if self.device.type != "cpu" and (self._flags.get("capturable") or self._flags.get("fused")):
            for state, _ in self._states():
                for name in _COUNTS & state.keys():
                    state[name] = state[name].to(self.device, torch.float32)

    def _states(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                state = self.optimizer.state.get(parameter)
                if state and isinstance(state.get("step"), Tensor):
                    yield state, group

    def _as_the_users(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """Where the user's form counts on the host, so does the state that is saved."""
        if not self.active:
            return None
        inner = dict(state["state"])
        for group in state["param_groups"]:
            if group.get("capturable") or group.get("fused"):
                continue
            for number in group["params"]:
                one = inner.get(number)
                if one and isinstance(one.get("step"), Tensor):
                    inner[number] = {**one, **{name: one[name].cpu() for name in _COUNTS & one.keys()}}
        return {**state, "state": inner}

    # Stepping -------------------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Writes the rates that have changed on the host into their tensors."""
        if not self.rates_as_tensors:
            return
        for number, group in enumerate(self.optimizer.param_groups):
            self._fill(number, "lr", group["lr"])
            if self.kind == "tensor momentum":
                self._fill(number, "betas", group["betas"][0])
            elif self.kind == "tensor sgd":
                self._fill(number, "momentum", group["momentum"])

    def _fill(self, number: int, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            return  # the user's own, which is changed in place
        known = self._rates.get((number, name))
        if known is None:
            rate = torch.full((), value, dtype=torch.float32, device=self.device)
        elif known[0] == value:
            return
        else:
            rate = known[1].fill_(value)
        self._rates[number, name] = (value, rate)

    def rate(self, number: int, name: str, value: Any) -> Any:
        known = self._rates.get((number, name))
        return value if known is None or isinstance(value, Tensor) else known[1]

    @contextmanager
    def put_on(self) -> Iterator[None]:
        """The groups as this form wants them."""
        groups = self.optimizer.param_groups
        kept = []
        for number, group in enumerate(groups):
            changed = {name: value for name, value in self._flags.items() if name in group}
            if self.rates_as_tensors:
                changed["lr"] = self.rate(number, "lr", group["lr"])
            if self.kind == "tensor momentum":
                first, *others = group["betas"]
                changed["betas"] = (self.rate(number, "betas", first), *others)
            kept.append({name: group[name] for name in changed})
            group.update(changed)
        try:
            yield
        finally:
            for group, values in zip(groups, kept, strict=True):
                group.update(values)

    def _step(self, inner: Callable[..., Any]) -> Any:
        self.fill()
        if self.kind == "tensor sgd":
            note_step(self.optimizer)
            return step_sgd(self)
        if self.kind == "fused" and self.device.type == "cuda" and step_in_parts(self):
            note_step(self.optimizer)
            return None
        with self.put_on():
            return step_traced(self.optimizer) if self.traced else inner()


_FLAGS: dict[str, dict[str, Any]] = {
    "fused": {"fused": True, "foreach": False, "capturable": True},
    "foreach": {"foreach": True, "fused": False},
    "capturable": {"capturable": True, "foreach": True, "fused": False},
    "tensor momentum": {"capturable": True, "foreach": False, "fused": False},
    "tensor sgd": {},
}


@torch.no_grad()
def step_sgd(form: Form) -> None:
    """What ``SGD.step`` does, with rate and momentum in tensors; the state is that of ``SGD``."""
    for number, group in enumerate(form.optimizer.param_groups):
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            continue
        gradients = [p.grad for p in parameters]
        if group["maximize"]:
            gradients = list(foreach_neg(gradients))
        if group["weight_decay"]:
            gradients = list(foreach_add(gradients, parameters, alpha=group["weight_decay"]))
        if group["momentum"]:
            gradients = _with_momentum(form, number, group, parameters, gradients)
        rate = form.rate(number, "lr", group["lr"])
        foreach_sub_(parameters, foreach_mul(gradients, rate))


def _with_momentum(
    form: Form, number: int, group: dict[str, Any], parameters: list[Tensor], gradients: list[Tensor]
) -> list[Tensor]:
    states = [form.optimizer.state[p] for p in parameters]
    momentum = form.rate(number, "momentum", group["momentum"])
    begun = [i for i, state in enumerate(states) if state.get("momentum_buffer") is not None]
    if begun:
        buffers = [states[i]["momentum_buffer"] for i in begun]
        foreach_mul_(buffers, momentum)
        foreach_add_(buffers, [gradients[i] for i in begun], alpha=1 - group["dampening"])
    for state, gradient in zip(states, gradients, strict=True):
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = gradient.detach().clone()
    buffers = [state["momentum_buffer"] for state in states]
    if group["nesterov"]:
        return list(foreach_add(gradients, foreach_mul(buffers, momentum)))
    return buffers


# Which form ---------------------------------------------------------------------------------------------------------


def why_no_form(optimizer: Optimizer) -> str | None:
    """Why a recorded step cannot hold ``optimizer``, if so."""
    name = type(optimizer).__name__
    if needs_closure(optimizer):
        return f"{name} evaluates the loss again inside its step"
    if type(optimizer) is not SGD and not (name in _TENSOR_RATE and type(optimizer).__module__.startswith("torch.")):
        return f"the optimizer {name} has no form in which its learning rate is a tensor"
    if has_step_hooks(optimizer):
        return f"hooks are registered on the step of {name}, and would be played only while it is recorded"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{name} is differentiable"
    return None


def why_no_weights(module: nn.Module, optimizers: list[Optimizer]) -> str | None:
    """Why the parameters cannot be held by a recorded step, if so."""
    for name, inner in module.named_modules():
        if isinstance(inner, nn.Embedding | nn.EmbeddingBag) and inner.sparse:
            return f"{name or type(inner).__name__} makes sparse gradients"
    parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    for parameter in parameters:
        if not parameter.is_floating_point():
            return f"a parameter is of type {parameter.dtype}"
        if type(parameter.data) is not Tensor:
            return f"a parameter is a {type(parameter.data).__name__}"
    return None


def captured_form(optimizer: Optimizer, device: torch.device, *, fused: bool | None, cycles: bool) -> Form:
    """The form for a CUDA graph. ``cycles`` says that somebody sets the momentum between steps."""
    if type(optimizer) is SGD:
        kind = "tensor sgd" if cycles or fused is False else "fused"
    elif cycles:
        kind = "tensor momentum"
    else:
        has_fused = type(optimizer) in (Adam, AdamW) and fused is not False
        kind = "fused" if has_fused else "capturable"
    return Form(optimizer, kind, device)


def allowed_form(optimizer: Optimizer, device: torch.device, name: str) -> Form:
    """The form ``name``, "fused" or "foreach", that the user allowed for eager steps."""
    if name not in optimizer.defaults:
        raise ValueError(f"{type(optimizer).__name__} has no {name} form; leave out {name}=True")
    return Form(optimizer, name, device, tensors=False)


def compiled_form(optimizer: Optimizer, device: torch.device) -> Form:
    """The form that a compiler can follow. On the CPU it is put on only while a step is traced."""
    form = Form(optimizer, "tensor sgd" if type(optimizer) is SGD else "tensor momentum", device)
    form.dormant = device.type == "cpu"
    return form
