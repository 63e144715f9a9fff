"""A change that is made once, at a set time of the training."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
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

    The change holds from then on. It is made to objects of this process and to fields of the run, so each later fit of
    the trainer, and a run that is resumed after the change, makes it again at its beginning. So let it set things
    rather than multiply what a checkpoint keeps: ``group["lr"] = 1e-4``, not ``group["lr"] *= 0.1``. Several are made
    again in the order of the list, so list them in the order of their times. A data set that
    workers have copied does not see a change: for a loader with persistent workers, set ``run.train_loader`` to a new
    one.

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
    _begins_anew = True
    same_on_ranks = ("at", "change")

    def __init__(self, at: str | Duration, change: Callable[[Run], Any]) -> None:
        if not callable(change):
            raise TypeError(f"change must be a function that takes the run, not {change!r}")
        self.at = Duration.parse(at, "at")
        self.change = change
        self.name = f"{type(self).__name__}({self.explain()})"  # there may be several, and each has a state
        self._made = False
        self._model: weakref.ref[nn.Module] | None = None

    @classmethod
    def example(cls) -> Self:
        return cls(at="1 epoch", change=_raise_dropout)

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        due = "before_epoch" if self.at.unit == "epochs" else "before_train_iter"
        return {"before_run": self._make_again, due: self._make_when_due}

    def _logs(self, prefixes: Sequence[str]) -> None:
        return None  # the change may do anything

    def explain(self) -> str:
        return f"{getattr(self.change, '__name__', type(self.change).__name__)} after {self.at}"

    def state_dict(self) -> dict[str, Any]:
        return {"made": self._made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._made, self._model = state["made"], None

    def _make_again(self, run: Run) -> None:
        if run.mode != "fit":
            return
        if self._model is not None and self._model() is not run.module:
            self._made = False  # it was made in the training of another model
        self._model = weakref.ref(run.module)
        if self._made:
            self.change(run)

    def _make_when_due(self, run: Run) -> None:
        if not self._made and run.clock.reached(self.at):
            self.change(run)
            self._made = True


def _raise_dropout(run: Run) -> None:
    for module in run.module.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
