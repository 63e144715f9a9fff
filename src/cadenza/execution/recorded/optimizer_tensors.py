"""What optimizers hold between two steps: settings, and tensors that a recorded step knows."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import is_, itemgetter
from typing import Any

from torch import Tensor

from cadenza.execution.recorded.optimizer_form import Form


def are_the_same(some: list[Any], others: list[Any]) -> bool:
    """Whether these are the same objects.

    >>> one = Tensor([1.0])
    >>> are_the_same([one, None], [one, None]), are_the_same([one], [one.clone()])
    (True, False)
    """
    return len(some) == len(others) and all(map(is_, some, others))


def states_of(forms: list[Form]) -> list[dict[str, Any]]:
    """What the optimizers keep for each parameter."""
    return [state for form in forms for state in form.optimizer.state.values()]


def places(states: list[dict[str, Any]]) -> list[int]:
    """Where the tensors of optimizers lie."""
    return [value.data_ptr() for state in states for value in state.values() if isinstance(value, Tensor)]


def settings_of(form: Form) -> Callable[[], Hashable]:
    """Reads the values of an optimizer that a recorded step holds as they are: all but the rates that are tensors."""
    optimizer, without = form.optimizer, {"lr"}
    # a rate of the user's that is a tensor is part of the recorded step
    parts: list[Callable[[dict[str, Any]], Any]] = [
        lambda group: isinstance(group["lr"], Tensor) and group["lr"].data_ptr()
    ]
    if form.kind == "tensor sgd":
        without.add("momentum")
        parts.append(lambda group: bool(group["momentum"]))
    elif form.kind == "tensor momentum" and "betas" in optimizer.defaults:
        without.add("betas")
        parts.append(lambda group: group["betas"][1])
    names = [name for name in optimizer.defaults if name not in without]
    read = itemgetter(*names, "params")

    def settings() -> Hashable:
        found: list[Any] = [form.version]
        for group in optimizer.param_groups:
            *values, parameters = read(group)
            found += [*values, len(parameters), *[part(group) for part in parts]]
        return tuple(found)

    return settings
