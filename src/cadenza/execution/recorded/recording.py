"""A step that was recorded once and runs again, and the tensors of optimizers that it relies on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cadenza.execution.recorded.optimizer_form import Form

if TYPE_CHECKING:
    from cadenza.points import Point
    from cadenza.run import Run


class CannotRecord(RuntimeError):
    """A step cannot be recorded; the text says why. Everything is as it was before the try."""


class Uncompiled(CannotRecord):
    """The step was done, but its trace could not be compiled."""

    def __init__(self, why: str, result: bool) -> None:
        super().__init__(why)
        self.result = result


@dataclass(frozen=True)
class Outcome:
    """What a step leaves on the host beside the values of tensors, so that playing it again leaves the same."""

    result: bool
    asked: int
    held: bool
    skipped: frozenset[str]
    steps: int
    at: Point | None
    gradients: list[Tensor | None]

    @classmethod
    def of(cls, run: Run, result: bool, steps_before: int, parameters: list[Tensor]) -> Outcome:
        steps = run.clock.steps - steps_before
        gradients = [parameter.grad for parameter in parameters]
        return cls(result, run._state.asked, run._state.held, run._state.skipped, steps, run._state.at, gradients)

    def leave(self, run: Run) -> None:
        state = run._state
        state.ask(self.asked)
        state.leave_recorded_step(held=self.held, skipped=self.skipped)
        state.reach(self.at)
        run.clock.steps += self.steps


class Recording:
    """One recorded step. ``play`` does it with the batch of ``run`` and leaves loss, output and all else there."""

    replays = 0
    held: Any = None
    """What it reads and writes and nobody else may hold any more, so that no other tensor comes to lie there."""

    def play(self, run: Run) -> bool:
        raise NotImplementedError  # pragma: no cover


def first_line(error: Exception) -> str:
    """An error in a few words."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


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
