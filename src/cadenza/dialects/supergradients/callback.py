"""The classes that users derive their callbacks from, and how they are played."""

from __future__ import annotations

from collections.abc import Callable as Function
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cadenza.dialects.adapter import Adapter, Foreign, Section
from cadenza.dialects.supergradients.context import PhaseContext
from cadenza.dialects.supergradients.phases import METHOD, Phase, as_phase
from cadenza.dialects.supergradients.sources import PlainSource, Source
from cadenza.dialects.supergradients.table import DIALECT
from cadenza.dialects.supergradients.upkeep import Upkeep
from cadenza.dialects.table import Hook
from cadenza.loop import named

if TYPE_CHECKING:
    from cadenza.run import Run

__all__ = ["Callback", "CallbackHandler", "Phase", "PhaseCallback", "PhaseContext"]

INSIDE = ("after_loss", "after_backward", "before_step", "after_zero_grad")
"""Points inside a step; who plays there sees predictions and losses there."""


class ContextSection(Section):
    """Keeps the context of one trainer up to date, before any callback of this dialect looks at it."""

    dialect = DIALECT
    facade_class = PhaseContext
    facade: PhaseContext

    def __init__(self, source: Source | None = None) -> None:
        super().__init__()
        self.source = source or PlainSource()
        self.looks_inside = False
        self.averages = self.averaging = False
        self.upkeep = Upkeep(self.facade, self.source)

    def bookkeeping(self) -> dict[str, Function[[Run], Any]]:
        return self.upkeep.points(self.looks_inside)

    def call(self, hook: str, run: Run) -> None:
        """Calls a hook of all callbacks, in their order, with the context."""
        for member in self.members:
            if isinstance(member, CallbackAdapter):
                member.call(hook, run)

    def join(self, run: Run) -> None:
        super().join(run)
        self.upkeep.begin(run)

    def close(self) -> None:
        self.source.close()

    def state_dict(self) -> dict[str, Any]:
        return self.upkeep.kept()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.upkeep.take_back(state)


class CallbackAdapter(Adapter):
    """Plays one callback with the context of its section."""

    section: ContextSection

    def __init__(self, foreign: Foreign, section: Section) -> None:
        super().__init__(foreign, section)
        if any(point in INSIDE for point in self.plays()):
            self.section.looks_inside = True

    def implements(self, row: Hook) -> bool:
        phase = getattr(self.foreign, "phase", None) if isinstance(self.foreign, PhaseCallback) else None
        return super().implements(row) or (phase is not None and METHOD[phase] == row.name)

    def call(self, hook: str, run: Run) -> None:
        """Calls one hook now, if the callback has it or its phase stands for it."""
        row = self.dialect.hook(hook)
        if row is not None and self.implements(row):
            self._plain_player(row)(run)

    def player(self, row: Hook, point: str) -> Function[[Run], Any]:
        play = self._plain_player(row)
        if point == "after_loss":
            return lambda run: play(run) if run.stage == "train" else None
        if point == "before_test_epoch":
            return lambda run: play(run) if _at_edge(run, 0) else None
        if point == "after_test_epoch":
            return lambda run: play(run) if _at_edge(run, -1) else None
        if row.name.startswith("on_validation_loader"):
            return lambda run: None if self.section.averaging else play(run)
        if row.name.startswith("on_average"):
            return lambda run: None if self.section.averages else play(run)
        return play

    def _plain_player(self, row: Hook) -> Function[[Run], Any]:
        context, method = self.section.facade, getattr(self.foreign, row.name)
        if isinstance(self.foreign, PhaseCallback) and METHOD[self.foreign.phase] == row.name:
            method = self.foreign.__call__
        return lambda run: method(context)


def _at_edge(run: Run, which: int) -> bool:
    """Whether this test loader is the first (0) or the last (-1) of those that are tested."""
    names = list(named(run.test_loaders)) or [run.loader_name]
    return run.loader_name == names[which]


class Callback(Foreign):
    """The base of callbacks. Override methods; each gets the context and nothing else.

    >>> class Report(Callback):
    ...     def on_train_loader_end(self, context):
    ...         print(f"epoch {context.epoch}: {context.metrics_dict}")
    """

    __dialect_base__ = True
    dialect = DIALECT
    section_class = ContextSection
    adapter_class = CallbackAdapter

    def on_training_start(self, context: PhaseContext) -> None: ...
    def on_train_loader_start(self, context: PhaseContext) -> None: ...
    def on_train_batch_start(self, context: PhaseContext) -> None: ...
    def on_train_batch_loss_end(self, context: PhaseContext) -> None: ...
    def on_train_batch_backward_end(self, context: PhaseContext) -> None: ...
    def on_train_batch_gradient_step_start(self, context: PhaseContext) -> None: ...
    def on_train_batch_gradient_step_end(self, context: PhaseContext) -> None: ...
    def on_train_batch_end(self, context: PhaseContext) -> None: ...
    def on_train_loader_end(self, context: PhaseContext) -> None: ...
    def on_validation_loader_start(self, context: PhaseContext) -> None: ...
    def on_validation_batch_start(self, context: PhaseContext) -> None: ...
    def on_validation_batch_end(self, context: PhaseContext) -> None: ...
    def on_validation_loader_end(self, context: PhaseContext) -> None: ...
    def on_test_loader_start(self, context: PhaseContext) -> None: ...
    def on_test_batch_start(self, context: PhaseContext) -> None: ...
    def on_test_batch_end(self, context: PhaseContext) -> None: ...
    def on_test_loader_end(self, context: PhaseContext) -> None: ...
    def on_validation_end_best_epoch(self, context: PhaseContext) -> None: ...
    def on_average_best_models_validation_start(self, context: PhaseContext) -> None: ...
    def on_average_best_models_validation_end(self, context: PhaseContext) -> None: ...
    def on_training_end(self, context: PhaseContext) -> None: ...


class CallbackHandler(Callback):
    """Calls a hook of several callbacks, in their order.

    >>> CallbackHandler([Callback()]).on_training_start(PhaseContext())
    [None]
    """

    __dialect_base__ = True

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda context: [getattr(one, name)(context) for one in self.callbacks]


class PhaseCallback(Callback):
    """A callback that is called itself, ``callback(context)``, at one phase, given as a ``Phase`` or by its name.

    >>> class Show(PhaseCallback):
    ...     def __call__(self, context):
    ...         print(context.epoch)
    >>> Show("TRAIN_EPOCH_END").phase
    <Phase.TRAIN_EPOCH_END: 'TRAIN_EPOCH_END'>
    """

    __dialect_base__ = True

    def __init__(self, phase: Phase | str) -> None:
        self.phase = as_phase(phase)

    def __call__(self, context: PhaseContext) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not say what is done: define __call__(self, context)")

    def __repr__(self) -> str:
        return type(self).__name__
