"""A change that is made once, at a set time of the training."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from cadenza.callback import Callback, Order
from cadenza.clock import Duration

if TYPE_CHECKING:
    from cadenza.run import Run


class StageSwitch(Callback):
    """Calls ``change(run)`` once, as soon as the training has come as far as ``at``.

    For the second stage of a training: another loss, augmentation off, a part of the model unfrozen. ``at`` counts
    epochs (``"285 epochs"``: before the epoch after the 285th begins) or anything else the clock counts (``"1000
    steps"``: before the first training iteration with at least 1000 steps done).

    The change is made to objects of this process, so a run that is resumed after ``at`` makes it again, before its
    first epoch or iteration. So let it set things rather than multiply what a checkpoint keeps: ``group["lr"] = 1e-4``,
    not ``group["lr"] *= 0.1``. In a second fit of the same trainer it is not made again. A data set that workers have
    copied does not see a change: for a loader with persistent workers, set ``run.train_loader`` to a new one.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> def smooth_no_more(run):
    ...     print(f"epoch {run.epoch}")
    ...     run.criterion = torch.nn.CrossEntropyLoss()
    >>> criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    >>> callbacks = [StageSwitch(at="2 epochs", change=smooth_no_more)]
    >>> trainer = cadenza.Trainer(model, sgd, criterion, callbacks=callbacks, device="cpu")
    >>> _ = trainer.fit(tiny_loader(), epochs=3)
    epoch 2
    """

    order = Order.PREPARE

    def __init__(self, at: str | Duration, change: Callable[[Run], Any]) -> None:
        if not callable(change):
            raise TypeError(f"change must be a function that takes the run, not {change!r}")
        self.at = Duration.parse(at, "at")
        self.change = change
        self._changed: weakref.ref[nn.Module] | None = None

    @classmethod
    def example(cls) -> Self:
        return cls(at="1 epoch", change=_raise_dropout)

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        return {"before_epoch" if self.at.unit == "epochs" else "before_train_iter": self._switch}

    def explain(self) -> str:
        return f"{getattr(self.change, '__name__', type(self.change).__name__)} after {self.at}"

    def _switch(self, run: Run) -> None:
        if run.clock.reached(self.at) and not self._is_changed(run):
            self.change(run)
            self._changed = weakref.ref(run.module)

    def _is_changed(self, run: Run) -> bool:
        return self._changed is not None and self._changed() is run.module


def _raise_dropout(run: Run) -> None:
    for module in run.module.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
