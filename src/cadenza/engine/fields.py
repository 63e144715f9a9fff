"""The fields of a run that live for an iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cadenza.data import join, split
from cadenza.points import FIELDS, Point

if TYPE_CHECKING:
    from cadenza.engine.stack import Outside, Pass

NOTHING: frozenset[str] = frozenset()
UNWEIGHTED = 1.0
"""The weight of a loss that nobody weighs. It is told by identity: to compare a tensor would wait for its device."""


# Values that a later step overwrites: they are copied when read, and otherwise never ----------------------------------


class Later:
    """An output."""

    __slots__ = ("copy",)

    def __init__(self, copy: Callable[[], Any]) -> None:
        self.copy = copy


class Page:
    """Losses of a few steps. Its places are those that steps write into, and a copy of them when others need these."""

    __slots__ = ("places",)

    def __init__(self, places: Sequence[Tensor]) -> None:
        self.places = places


class OnPage:
    """The loss of one step, on its page."""

    __slots__ = ("number", "page")

    def __init__(self, page: Page, number: int) -> None:
        self.page, self.number = page, number

    def look(self) -> Tensor:
        """The loss where it stands now, to be used at once."""
        return self.page.places[self.number]

    def copy(self) -> Tensor:
        return self.look().clone()


# Fields --------------------------------------------------------------------------------------------------------------


class _Gone:
    """What stands in a field whose life has ended, or has not begun."""

    def __repr__(self) -> str:
        return "GONE"


GONE: Any = _Gone()


class FieldError(AttributeError):
    """A field was read where it does not exist. The text is made only when somebody reads it."""

    def __init__(self, name: str, at: Point | None, stage: str | None) -> None:
        super().__init__(name=name)
        self.at = at
        self.stage = stage

    def __str__(self) -> str:
        life = FIELDS[str(self.name)]
        here = self.at.name if self.at else "outside a run"
        stage = f" ({self.stage})" if self.stage else ""
        until = "a prediction has no loss; " if self.stage == "pred" and self.name == "loss" else ""
        if here == "after_fetch" == life.first:
            return (
                f"run.{self.name} does not exist here: this fetch{stage} found the end of the loader, which plays its "
                f'points, too. Play at before_iter, or ask hasattr(run, "{self.name}")'
            )
        return (
            f"run.{self.name} exists from {life.first} to the end of the iteration, unless it was skipped; "
            f"{until}you are at {here}{stage}"
        )


class Fields:
    """Each field is gone when its life ends: nothing of the last iteration is shown in the next.

    They are properties over private names, which the engine uses itself.
    """

    stage: str | None
    _at: Point | None
    _pass: Pass | Outside
    _skipped: frozenset[str]

    def __init__(self) -> None:
        self._batch: Any = GONE
        self._output: Any = GONE
        self._loss: Any = GONE
        self._last_loss: Any = None
        self._last_output: Any = None

    @property
    def batch(self) -> Any:
        """What the loader gave, on the device."""
        if self._batch is GONE:
            raise FieldError("batch", self._at, self.stage)
        return self._batch

    @batch.setter
    def batch(self, value: Any) -> None:
        self._batch = value

    @batch.deleter
    def batch(self) -> None:
        self._batch = GONE

    @property
    def output(self) -> Any:
        """What the model returned."""
        if self._output is GONE:
            raise FieldError("output", self._at, self.stage)
        if type(self._output) is Later:
            self._output = self._output.copy()
        return self._output

    @output.setter
    def output(self, value: Any) -> None:
        self._output = value

    @output.deleter
    def output(self) -> None:
        self._output = GONE

    @property
    def loss(self) -> Tensor:
        """The loss of this batch, with its graph."""
        if self._loss is GONE:
            raise FieldError("loss", self._at, self.stage)
        if type(self._loss) is OnPage:
            self._loss = self._loss.copy()
        return self._loss  # type: ignore[no-any-return]  # a call to cast would be made in every step

    @loss.setter
    def loss(self, value: Tensor) -> None:
        self._loss = value

    @loss.deleter
    def loss(self) -> None:
        self._loss = GONE

    @property
    def batch_idx(self) -> int:
        """The number of this batch in its pass, from 0."""
        if self._batch is GONE:
            raise FieldError("batch_idx", self._at, self.stage)
        return self._pass.index

    @property
    def skipped(self) -> frozenset[str]:
        """The actions of this iteration that were asked away."""
        if not self._pass.iterating:
            raise FieldError("skipped", self._at, self.stage)
        return self._skipped

    @property
    def inputs(self) -> Any:
        """The part of the batch that the model gets. Assigning it changes the batch."""
        return split(self._whole("inputs"))[0]

    @inputs.setter
    def inputs(self, value: Any) -> None:
        self._batch = join(self._whole("inputs"), inputs=value)

    @property
    def targets(self) -> Any:
        """The part of the batch that the loss gets. Assigning it changes the batch."""
        return split(self._whole("targets"))[1]

    @targets.setter
    def targets(self, value: Any) -> None:
        self._batch = join(self._whole("targets"), targets=value)

    def _whole(self, part: str) -> Any:
        if self._batch is GONE:
            raise FieldError(part, self._at, self.stage)
        return self._batch

    def _forget(self) -> None:
        """Ends the life of the fields. Loss and output are freed when the next ones exist, which is cheaper than
        before the next forward, and is when a hand-written loop frees them."""
        self._last_loss, self._last_output = self._loss, self._output
        self._batch = self._output = self._loss = GONE

    def _fields(self) -> tuple[Any, Any, Any]:
        return self._batch, self._output, self._loss

    def _set_fields(self, fields: tuple[Any, Any, Any] = (GONE, GONE, GONE)) -> None:
        self._batch, self._output, self._loss = fields
