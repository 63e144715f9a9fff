"""How fastai's hooks are called: with the whole state as keywords, and by what they return."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from cadenza.dialects.adapter import Adapter, Foreign, Player, Section
from cadenza.dialects.fastai.section import METRIC_PLACE, FastaiSection
from cadenza.dialects.table import Hook, nearest
from cadenza.registration.checks import CallbackError

if TYPE_CHECKING:
    from cadenza.run import Run

Caller: TypeAlias = Callable[[dict[str, Any]], Any]

_BY_SECTION = {("on_backward_end", "after_train_iter"), ("on_step_end", "before_zero_grad"),
               ("on_step_end", "after_train_iter")}  # fmt: skip
"""Where the section calls a hook on all callbacks, since its action was skipped."""

_MODE_AT = {
    ("on_epoch_begin", "before_train_epoch"): ("fit",),
    ("on_epoch_begin", "before_val_epoch"): ("validate",),
    ("on_epoch_end", "after_epoch"): ("fit",),
    ("on_epoch_end", "after_val_epoch"): ("validate",),
}
_METRIC_AT = {
    ("on_train_begin", "before_run"), ("on_epoch_begin", "before_train_epoch"), ("on_epoch_begin", "before_val_epoch"),
    ("on_batch_begin", "before_val_iter"), ("on_batch_end", "after_val_iter"), ("on_epoch_end", "after_epoch"),
    ("on_epoch_end", "after_val_epoch"), ("on_train_end", "after_run"), ("on_train_end", "after_error"),
}  # fmt: skip
"""Where a metric is called: in validation, and around it."""
_STAGE_AT = {("on_loss_begin", "after_forward"): "pred", ("on_loss_end", "after_loss"): "train"}


class FastaiAdapter(Adapter):
    """Plays a fastai callback. ``callers`` are its hooks by name, each a function of the state."""

    stages = frozenset({"train", "val", "pred"})
    section: FastaiSection

    def __init__(self, foreign: Foreign, section: Section) -> None:
        super().__init__(foreign, section)
        vars(foreign)["_section"] = section
        self.section.adapters.add(self)
        self.is_metric = vars(foreign).get("_place") == METRIC_PLACE
        rows = [row for row in self.dialect.hooks if self.points_of(row) and self.implements(row)]
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
            needed = parameter.default is parameter.empty and not parameter.kind.name.startswith("VAR_")
            if needed and parameter.name not in row.arguments:
                near = nearest(parameter.name, row.arguments)
                raise CallbackError(
                    f"fastai: {where} wants {parameter.name!r}, which the state does not have there"
                    + (f"; the nearest is {near!r}" if near else "")
                )

    def player(self, row: Hook, point: str) -> Player:
        call, section, hook = self.callers[row.name], self.section, row.name
        values, refreshed = section.values, _REFRESHED.get(point, ())
        extra = _EXTRA.get(hook)
        owed = self.is_metric and hook == "on_epoch_end"

        def play(run: Run) -> None:
            if owed and values["last_metrics"][0] is None:
                return  # there was no validation
            for name, field in refreshed:
                values[name] = getattr(run, field)
            result = call(values) if extra is None else call(values | extra(section, run))
            if result is not None:
                section.take(self, hook, result, run)

        return play

    def points_of(self, row: Hook) -> tuple[str, ...]:
        if self.is_metric:
            return tuple(point for point in row.points if (row.name, point) in _METRIC_AT)
        return tuple(point for point in row.points if (row.name, point) not in _BY_SECTION)

    def limited(self, row: Hook, point: str, player: Player) -> Player:
        at = (row.name, point)
        if at in _STAGE_AT:
            stage = _STAGE_AT[at]
            return lambda run: player(run) if run.stage == stage else None
        if at == ("on_batch_end", "after_pred_iter"):
            return lambda run: player(run) if self.section.ends_batches else None
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


_BATCH = (("last_input", "inputs"), ("last_target", "targets"))
_OUTPUT, _LOSS = (("last_output", "output"),), (("last_loss", "loss"),)
_REFRESHED = {
    **dict.fromkeys(("before_train_iter", "before_val_iter", "before_pred_iter"), _BATCH),
    **dict.fromkeys(("before_loss", "after_forward"), _OUTPUT),
    **dict.fromkeys(("after_loss", "before_backward"), _LOSS),
}
"""What is read anew before each call, since others may have changed it in between."""

_EXTRA: dict[str, Callable[[FastaiSection, Run], dict[str, Any]]] = {
    "on_train_begin": lambda section, run: {"metrics_names": section.metrics_names},
    "on_train_end": lambda section, run: {"exception": run.error or False, "epoch": section.epochs_done(run)},
}
