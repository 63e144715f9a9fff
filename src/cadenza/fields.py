"""The fields of a run that live for an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cadenza.data import join, split
from cadenza.points import FIELDS, Point

if TYPE_CHECKING:
    from torch import Tensor

SLOTS = ("batch", "batch_idx", "skipped", "output", "loss")


class FieldError(AttributeError):
    """A field was read where it does not exist. The text is made only when somebody reads it."""

    def __init__(self, name: str, at: Point | None, stage: str | None) -> None:
        super().__init__(name=name)
        self.at = at
        self.stage = stage

    def __str__(self) -> str:
        life = FIELDS.get(self.name or "")
        if life is None:
            return f"a run has no field {self.name!r}; run.store is the place for values of your own"
        here = self.at.name if self.at else "outside a run"
        stage = f" ({self.stage})" if self.stage else ""
        until = "a prediction has no loss; " if self.stage == "pred" and self.name == "loss" else ""
        return (
            f"run.{self.name} exists from {life.first} to the end of the iteration, unless it was skipped; "
            f"{until}you are at {here}{stage}"
        )


class Fields:
    """Each field is deleted when its life ends: nothing of the last iteration is shown in the next.

    They are slots of a base class without a default, so that reading one outside its life falls through to
    ``__getattr__`` and reading one inside costs what a plain attribute costs.
    """

    __slots__ = SLOTS

    batch: Any
    batch_idx: int
    skipped: frozenset[str]
    output: Any
    loss: Tensor

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise FieldError(name, self._at, self.stage)

    @property
    def inputs(self) -> Any:
        """The part of the batch that the model gets. Assigning it changes the batch."""
        return split(self._part("inputs"))[0]

    @inputs.setter
    def inputs(self, value: Any) -> None:
        self.batch = join(self._part("inputs"), inputs=value)

    @property
    def targets(self) -> Any:
        """The part of the batch that the loss gets. Assigning it changes the batch."""
        return split(self._part("targets"))[1]

    @targets.setter
    def targets(self, value: Any) -> None:
        self.batch = join(self._part("targets"), targets=value)

    def _part(self, name: str) -> Any:
        if not self._alive("batch"):
            raise FieldError(name, getattr(self, "_at", None), getattr(self, "stage", None))
        return self.batch

    def _alive(self, name: str) -> bool:
        try:
            getattr(self, name)
        except AttributeError:
            return False
        return True

    def _forget(self) -> None:
        """Deletes what belongs to the iteration that ended. Its loss is freed when the next one exists, which is
        cheaper than before the next forward, and is when a hand-written loop frees it."""
        try:
            self._last_loss = self.loss
            del self.batch, self.batch_idx, self.skipped, self.output, self.loss
        except AttributeError:
            for name in SLOTS:
                if self._alive(name):
                    delattr(self, name)

    def _put_aside_fields(self) -> dict[str, Any]:
        """Takes the living fields away for a nested pass; ``_bring_back_fields`` returns them."""
        alive = {name: getattr(self, name) for name in SLOTS if self._alive(name)}
        for name in alive:
            delattr(self, name)
        return alive

    def _bring_back_fields(self, fields: dict[str, Any]) -> None:
        for name in SLOTS:
            if name in fields:
                setattr(self, name, fields[name])
            elif self._alive(name):
                delattr(self, name)
