"""How Orca's callbacks are called, and how its main callback owns the behaviours."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from cadenza.callback import BEHAVIOUR_NAMES, Order, in_turn
from cadenza.dialects.adapter import Adapter, Foreign, Player, Section, overridden
from cadenza.dialects.orca.table import DIALECT, WITHOUT_GRADIENTS
from cadenza.dialects.table import Hook
from cadenza.engine.fields import FieldError
from cadenza.main_callback import MainCallback, zero_grad
from cadenza.registration.checks import CallbackError

if TYPE_CHECKING:
    from cadenza.dialects.orca.runner import Runner
    from cadenza.dialects.orca.section import OrcaSection
    from cadenza.run import Run

MAIN_HOOKS = frozenset(BEHAVIOUR_NAMES & {row.name for row in DIALECT.hooks})
ITERATION_FIELDS = frozenset({"batch", "batch_idx", "output", "outputs", "loss"})
_WITHOUT_GRADIENTS = frozenset(row.name for row in DIALECT.hooks if row.says == WITHOUT_GRADIENTS)


class OrcaAdapter(Adapter):
    """Calls each hook with the runner; those of validation and prediction without gradients, as the original does."""

    def __init__(self, foreign: Foreign, section: Section) -> None:
        for name in MAIN_HOOKS:
            if not isinstance(self, MainCallback) and hasattr(foreign, name):
                raise CallbackError(
                    f"orca: {type(foreign).__name__}.{name} belongs to the main callback: derive it from MainCallback"
                )
        super().__init__(foreign, section)

    def player(self, row: Hook, point: str) -> Player:
        method, runner = getattr(self.foreign, row.name), self.section.facade
        if row.name in _WITHOUT_GRADIENTS:
            method = torch.no_grad()(method)
        return lambda run: method(runner)


class MainAdapter(OrcaAdapter, MainCallback):
    """Plays Orca's main callback as the native one. Only what the user overrides is taken out of the engine's hands;
    the defaults are played as separate actions, for the first optimizer alone."""

    order: int = Order.PREPARE
    _instead_of_an_own_step = (
        "orca: do it in on_iter_backward itself, before runner.optimizer.step(), or leave on_iter_backward out: the "
        "default lets native callbacks play between its actions"
    )
    foreign: Any
    section: OrcaSection

    @classmethod
    def for_overrides(cls, foreign: Foreign) -> type[MainAdapter]:
        """An adapter class with just the behaviours that ``foreign`` has of its own."""
        own: dict[str, Any] = {"name": type(foreign).__name__}
        if overridden(foreign, "on_iter_forward"):
            own["on_iter_forward"] = _behaviour("on_iter_forward")
        for name, also in (("on_train_forward", ()), ("on_val_forward", ("on_test_forward",))):
            if overridden(foreign, name):
                own |= dict.fromkeys((name, *also), _behaviour(name))
        if overridden(foreign, "on_iter_backward"):
            own["on_iter_backward"] = _behaviour("on_iter_backward")
            own["asks"] = frozenset({"skip_step", "skip_zero_grad"})
        else:
            own["on_iter_step"] = lambda self, run: run.step_optimizer(run.optimizer)
            own["on_iter_zero_grad"] = lambda self, run: zero_grad(run.optimizer)
        return type(f"Main{cls.__name__}", (cls,), own)

    def __init__(self, foreign: Foreign, section: Section) -> None:
        MainCallback.__init__(self)
        super().__init__(foreign, section)
        self.order = Order.PREPARE
        self.adjusts_each_iteration = reads_iteration(foreign.on_lr_adjust)  # type: ignore[attr-defined]

    def implements(self, row: Hook) -> bool:
        return row.name not in BEHAVIOUR_NAMES and super().implements(row)

    def plays(self) -> dict[str, Player]:
        played = super().plays()
        point = "after_train_iter" if self.adjusts_each_iteration else "after_train_epoch"
        played[point] = in_turn(self._adjust, played.get(point))
        if overridden(self.foreign, "on_iter_backward"):
            played["after_backward"] = _keep_unless_stepped
        return played | {name: getattr(self, name) for name in BEHAVIOUR_NAMES if name in vars(type(self))}

    def _adjust(self, run: Run) -> None:
        try:
            self.foreign.on_lr_adjust(self.section.facade)
        except FieldError as error:
            if not self.adjusts_each_iteration:
                error.add_note(
                    "orca: on_lr_adjust is called once in each epoch. Name batch_idx (or batch, output, loss) in "
                    "on_lr_adjust itself, and it is called in each iteration"
                )
            raise

    # The behaviours as Orca has them by default; what the user overrides is put before these -------------------------

    def on_iter_forward(self, run: Run) -> None:
        default_forward(self.section.facade)

    def on_iter_loss(self, run: Run) -> None:
        default_loss(self.section.facade)

    def on_pred_forward(self, run: Run) -> None:
        self.foreign.on_pred_forward(self.section.facade)

    def on_lr_adjust(self, run: Run) -> None:
        """Orca's place is before validation; only a schedule that follows a metric is left for here."""
        if not overridden(self.foreign, "on_lr_adjust") and isinstance(run.scheduler, ReduceLROnPlateau):
            super().on_lr_adjust(run)


def default_forward(runner: Runner) -> None:
    """The first half of Orca's forward: the last part of the batch is the target, the others go into the model."""
    *features, runner.target = runner.batch
    runner.output = runner.model(*features)


def default_loss(runner: Runner) -> None:
    """The second half: lists of outputs and targets are spread over the arguments of the criterion."""
    if runner.criterion is None:
        raise TypeError("orca: there is no loss: give one, or write an on_iter_forward that sets runner.loss")
    outputs, targets = (v if isinstance(v, list | tuple) else (v,) for v in (runner.output, runner.target))
    runner.loss = runner.criterion(*outputs, *targets)


def _behaviour(name: str) -> Callable[[MainAdapter, Run], None]:
    def behave(self: MainAdapter, run: Run) -> None:
        getattr(self.foreign, name)(self.section.facade)

    return behave


def _keep_unless_stepped(run: Run) -> None:
    """After the user's own zero_grad, backward and step: if it did not step, the engine must not either, nor clear what
    it gathers."""
    if not run.stepped_in_backward:
        run.skip_step()
        run.skip_zero_grad()


def reads_iteration(method: Callable[..., Any]) -> bool:
    """Whether the code of ``method`` names a field that exists only in an iteration.

    >>> reads_iteration(lambda runner: runner.batch_idx), reads_iteration(lambda runner: runner.epochs)
    (True, False)
    """
    code = getattr(inspect.unwrap(method), "__code__", None)
    return code is not None and _names_field(code)


def _names_field(code: CodeType) -> bool:
    """Whether ``code``, or a function that is defined in it, reads an attribute of one of these names."""
    if any(isinstance(part, CodeType) and _names_field(part) for part in code.co_consts):
        return True
    reads = (step for step in dis.get_instructions(code) if step.opname in ("LOAD_ATTR", "LOAD_METHOD"))
    return any(step.argval in ITERATION_FIELDS for step in reads)
