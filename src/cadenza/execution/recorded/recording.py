"""A step that was recorded once and is played again: a CUDA graph, or compiled code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

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
        return cls(result, run._asked, run._held, run._skipped, steps, run._at, gradients)

    def leave(self, run: Run) -> None:
        run._asked |= self.asked
        run._held = self.held
        run._had_held = False
        run._skipped = self.skipped
        run._forwarded = run._pass.index
        run.clock.steps += self.steps
        run._at = self.at


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
