"""The base classes of Orca's callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from cadenza.dialects.adapter import Adapter, Foreign
from cadenza.dialects.orca.main import MainAdapter, OrcaAdapter, default_forward, default_loss
from cadenza.dialects.orca.metrics import squeezed
from cadenza.dialects.orca.runner import Runner
from cadenza.dialects.orca.section import OrcaSection
from cadenza.dialects.orca.table import DIALECT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Callback", "MainCallBack", "MainCallback", "make_only_mainCallback"]


def calling(name: str) -> Callable[[Any, Runner], None]:
    """A hook that calls another one unless it is overridden."""

    def call(self: Any, runner: Runner) -> None:
        getattr(self, name)(runner)

    return call


class Callback(Foreign):
    """Override the points at which you want to act; each is handed the runner.

    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> import cadenza, torch
    >>> class Show(Callback):
    ...     def after_train_epoch(self, runner):
    ...         print("finished:", runner.epochs)
    >>> model = tiny_classifier()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = cadenza.Trainer(model, optimizer, torch.nn.CrossEntropyLoss(), callbacks=[Show()], device="cpu")
    >>> history = trainer.fit(tiny_loader(), epochs=1)
    finished: 1
    """

    __dialect_base__ = True
    dialect = DIALECT
    section_class = OrcaSection
    adapter_class = OrcaAdapter

    before_run = calling("on_run_begin")
    after_run = calling("on_run_end")
    before_epoch = calling("on_epoch_begin")
    after_epoch = calling("on_epoch_end")
    before_iter = calling("on_iter_begin")
    after_iter = calling("on_iter_end")
    before_train_epoch = calling("before_epoch")
    after_train_epoch = calling("after_epoch")
    before_train_iter = calling("before_iter")
    after_train_iter = calling("after_iter")
    before_val_epoch = calling("before_epoch")
    after_val_epoch = calling("after_epoch")
    before_val_iter = calling("before_iter")
    after_val_iter = calling("after_iter")
    before_pred_epoch = calling("before_epoch")
    after_pred_epoch = calling("after_epoch")
    before_pred_iter = calling("before_iter")
    after_pred_iter = calling("after_iter")

    def on_run_begin(self, runner: Runner) -> None: ...
    def on_run_end(self, runner: Runner) -> None: ...
    def on_epoch_begin(self, runner: Runner) -> None: ...
    def on_epoch_end(self, runner: Runner) -> None: ...
    def on_iter_begin(self, runner: Runner) -> None: ...
    def on_iter_end(self, runner: Runner) -> None: ...

    def every_n_epoch(self, runner: Runner, n: int) -> bool:
        """Whether ``n`` divides the number of finished epochs; never for n <= 0."""
        return n > 0 and runner.epochs % n == 0

    def every_n_iter(self, runner: Runner, n: int) -> bool:
        """Whether ``n`` divides the number of this batch, from 1; never for n <= 0."""
        return n > 0 and (runner.global_step + 1) % n == 0


class MainCallback(Callback):
    """The one callback that says what forward, backward and the learning rate do. Override what is to be different."""

    __dialect_base__ = True

    @classmethod
    def adapter_for(cls, foreign: Foreign) -> type[Adapter]:
        return MainAdapter.for_overrides(foreign)

    def on_iter_forward(self, runner: Runner) -> None:
        """The last part of the batch is the target, the others go into the model; lists are spread over arguments."""
        default_forward(runner)
        default_loss(runner)

    def on_iter_backward(self, runner: Runner) -> None:
        """Clears the gradients, computes them, and steps the first optimizer."""
        runner.optimizer.zero_grad()
        runner.loss.backward()
        runner.optimizer.step()

    def on_lr_adjust(self, runner: Runner) -> None:
        """Steps the first scheduler; one that follows a metric is stepped after validation instead."""
        scheduler = runner.lr_scheduler
        if scheduler is not None and not isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step()

    on_train_forward = calling("on_iter_forward")
    on_val_forward = calling("on_iter_forward")

    def on_pred_forward(self, runner: Runner) -> None:
        """Calls the model; trailing dimensions of size 1 are squeezed away."""
        batch: Any = runner.batch
        features = batch if isinstance(batch, list | tuple) else (batch,)
        runner.output = squeezed(runner.model(*(features[:-1] if len(features) > 1 else features)))


MainCallBack = MainCallback
"""As the tutorial spells it."""


def make_only_mainCallback(callbacks: Sequence[Callback]) -> list[Callback]:  # noqa: N802 (the original's name)
    """A new list with exactly one main callback in front and the others in their order; the original swapped two."""
    mains = [one for one in callbacks if isinstance(one, MainCallback)]
    if len(mains) > 1:
        names = " and ".join(type(one).__name__ for one in mains)
        raise ValueError(f"orca: {names} are main callbacks; a run has exactly one")
    others = [one for one in callbacks if not isinstance(one, MainCallback)]
    return [*(mains or [MainCallback()]), *others]
