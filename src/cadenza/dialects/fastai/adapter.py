"""How fastai's hooks are called: with the whole state as keywords, and by what they return."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from cadenza.dialects.adapter import Adapter, Foreign, Player, Section
from cadenza.dialects.fastai.section import FastaiSection
from cadenza.dialects.table import Hook, nearest
from cadenza.registration import CallbackError

if TYPE_CHECKING:
    from cadenza.run import Run

Caller: TypeAlias = Callable[[dict[str, Any]], Any]
Refresh: TypeAlias = "Callable[[Run, dict[str, Any]], None]"

_BY_SECTION = {("on_backward_end", "after_train_iter"), ("on_step_end", "before_zero_grad"),
               ("on_step_end", "after_train_iter")}  # fmt: skip
"""Where the section calls a hook on all callbacks, since its action was skipped."""

_MODE_AT = {
    ("on_epoch_begin", "before_train_epoch"): ("fit",),
    ("on_epoch_begin", "before_val_epoch"): ("validate",),
    ("on_epoch_end", "after_epoch"): ("fit",),
    ("on_epoch_end", "after_val_epoch"): ("validate",),
}
_STAGE_AT = {("on_loss_begin", "after_forward"): "pred", ("on_loss_end", "after_loss"): "train"}


class FastaiAdapter(Adapter):
    """Plays a fastai callback. ``callers`` are its hooks by name, each a function of the state."""

    stages = frozenset({"train", "val", "pred"})
    section: FastaiSection

    def __init__(self, foreign: Foreign, section: Section) -> None:
        super().__init__(foreign, section)
        vars(foreign)["_section"] = section
        self.section.adapters.add(self)
        rows = [row for row in self.dialect.hooks if row.points and self.implements(row)]
        self.callers: dict[str, Caller] = {row.name: caller(getattr(foreign, row.name)) for row in rows}

    def order_of(self, foreign: Foreign) -> int:
        order = getattr(foreign, "_order", 0)
        if not isinstance(order, int):
            raise CallbackError(f"fastai: {type(foreign).__name__}._order is a whole number, not {order!r}")
        return int(vars(foreign).get("_place", order))

    def check_signature(self, where: str, row: Hook, function: Callable[..., Any]) -> None:
        """Hooks take keywords: any that the state has by then. Without ``**kwargs`` they get what they name."""
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise CallbackError(f"fastai: {where} is called with keywords; {parameter.name!r} cannot be one")
            needed = parameter.default is parameter.empty and parameter.kind in (
                parameter.POSITIONAL_OR_KEYWORD,
                parameter.KEYWORD_ONLY,
            )
            if needed and parameter.name not in row.arguments:
                near = nearest(parameter.name, row.arguments)
                raise CallbackError(
                    f"fastai: {where} wants {parameter.name!r}, which the state does not have there"
                    + (f"; the nearest is {near!r}" if near else "")
                )

    def player(self, row: Hook, point: str) -> Player:
        call, section, hook = self.callers[row.name], self.section, row.name
        values, refresh = section.values, _REFRESHED.get(point)
        extra = _EXTRA.get(hook)

        def play(run: Run) -> None:
            if refresh is not None:
                refresh(run, values)
            result = call(values) if extra is None else call(values | extra(section, run))
            if result is not None:
                section.take(self, hook, result, run)

        return play

    def points_of(self, row: Hook) -> tuple[str, ...]:
        return tuple(point for point in row.points if (row.name, point) not in _BY_SECTION)

    def limited(self, row: Hook, point: str, player: Player) -> Player:
        at = (row.name, point)
        if at in _STAGE_AT:
            stage = _STAGE_AT[at]
            return lambda run: player(run) if run.stage == stage else None
        modes = _MODE_AT.get(at)
        if modes is None:
            return super().limited(row, point, player)
        return lambda run: player(run) if run.mode in modes else None

    def state_dict(self) -> dict[str, Any]:
        if not getattr(self.foreign, "state_in_checkpoint", False):
            return super().state_dict()
        state: dict[str, Any] = self.foreign.get_state()  # type: ignore[attr-defined]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if getattr(self.foreign, "state_in_checkpoint", False):
            vars(self.foreign).update(state)
        else:
            super().load_state_dict(state)


def caller(method: Callable[..., Any]) -> Caller:
    """A function of the state that calls ``method``: with all of it, or with the names that it takes."""
    parameters = inspect.signature(method).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return lambda values: method(**values)
    names = [parameter.name for parameter in parameters]
    return lambda values: method(**{name: values[name] for name in names if name in values})


def _batch(run: Run, values: dict[str, Any]) -> None:
    values["last_input"], values["last_target"] = run.inputs, run.targets


def _output(run: Run, values: dict[str, Any]) -> None:
    values["last_output"] = run.output


def _loss(run: Run, values: dict[str, Any]) -> None:
    values["last_loss"] = run.loss


_REFRESHED: dict[str, Refresh] = {
    "before_train_iter": _batch,
    "before_val_iter": _batch,
    "before_pred_iter": _batch,
    "before_loss": _output,
    "after_forward": _output,
    "after_loss": _loss,
    "before_backward": _loss,
}
"""What is read anew before each call, since others may have changed it in between."""

_EXTRA: dict[str, Callable[[FastaiSection, Run], dict[str, Any]]] = {
    "on_train_begin": lambda section, run: {"metrics_names": section.metrics_names},
    "on_train_end": lambda section, run: {"exception": run.error or False},
}
