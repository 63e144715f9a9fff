"""The learning rates and momenta that training uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor
from torch.optim import Optimizer

from cadenza.callback import Callback, Order, without
from cadenza.clock import Cadence, Duration
from cadenza.foundation.arguments import flags

if TYPE_CHECKING:
    from cadenza.run import Run


class LRMonitor(Callback):
    """Logs the learning rate, and the momentum if there is one, of every parameter group of every optimizer.

    With one optimizer of one group the names are ``lr`` and ``momentum``; otherwise ``lr/<optimizer>/<group>``, where
    the optimizer is a number and the group its key "name" or else a number: ``lr/0/1``. The momentum of Adam and its
    kin is the first of its betas. ``momentum=False`` leaves momenta out. ``every="1 epoch"`` logs at the end of the
    training pass, into the row of the epoch; "10 steps" (or batches, samples, seconds) into the rows of iterations.

    What is logged is what the last iteration was played with, not what a schedule has already set for the next one: it
    is read as an iteration begins, after the schedules, outside the step. A rate that is a tensor stays on its device.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.4)
    >>> halving = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5)
    >>> loss = torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, loss, scheduler=halving, callbacks=[LRMonitor()], device="cpu")
    >>> trainer.fit(tiny_loader(), epochs=3)["lr"]
    [0.4, 0.2, 0.1]
    """

    order = Order.REPORT
    """After the schedules, which set the rates at the same point."""

    def __init__(self, every: str | Duration = "1 epoch", *, momentum: bool = True) -> None:
        flags(momentum=momentum)
        self.every, self.momentum = Duration.interval(every, "every"), momentum
        self._used: dict[str, float | Tensor] = {}
        self._cadence: Cadence | None = None

    @classmethod
    def example(cls) -> Self:
        return cls(every="2 steps")

    def _logs(self, prefixes: Sequence[str]) -> list[str]:
        return ["lr", "lr/*", *(["momentum", "momentum/*"] if self.momentum else [])]

    def explain(self) -> str:
        return f"lr{' and momentum' if self.momentum else ''} every {self.every}"

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """At the end of iterations only if something is logged there."""
        unneeded = ("after_train_iter",) if self.every.unit == "epochs" else ()
        return without(super().plays(), LRMonitor, *unneeded)

    def before_run(self, run: Run) -> None:
        self._cadence = None
        if not run.clock.batches:
            self._used = {}

    def before_train_iter(self, run: Run) -> None:
        if self._cadence is None:
            self._cadence = Cadence(self.every, run.clock)
        self._used = rates(run.optimizers, momentum=self.momentum)

    def after_train_iter(self, run: Run) -> None:
        if self.every.unit != "epochs" and self._cadence is not None and self._cadence.due():
            self._log(run)

    def after_train_epoch(self, run: Run) -> None:
        if self.every.unit == "epochs" and (run.epoch + 1) % self.every.amount == 0:
            self._log(run)

    def _log(self, run: Run) -> None:
        run.log(self._used, over="last")

    _begins_anew = True

    def state_dict(self) -> dict[str, Any]:
        return {"used": dict(self._used)} if self._used else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._used = dict(state.get("used", {}))


def rates(optimizers: Sequence[Optimizer], *, momentum: bool = True) -> dict[str, float | Tensor]:
    """The learning rates and momenta by name, as they are now.

    >>> import torch
    >>> one, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    >>> groups = [{"params": one.parameters(), "name": "old"}, {"params": other.parameters(), "lr": 0.2}]
    >>> rates([torch.optim.SGD(groups, lr=0.1, momentum=0.9)], momentum=False)
    {'lr/0/old': 0.1, 'lr/0/1': 0.2}
    """
    alone = len(optimizers) == 1 and len(optimizers[0].param_groups) == 1  # as in most trainings
    groups = [("", optimizers[0].param_groups[0])] if alone else list(_groups(optimizers))
    found = {f"lr{place}": group.get("lr") for place, group in groups}
    if momentum:
        for place, group in groups:
            betas = group.get("betas")
            found[f"momentum{place}"] = group.get("momentum") if betas is None else betas[0]
    # A number as it is; of a tensor, which is changed in place, a copy.
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in found.items()
        if value is not None
    }


def _groups(optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, optimizer in enumerate(optimizers):
        names = [group.get("name") for group in optimizer.param_groups]
        for index, (group, name) in enumerate(zip(optimizer.param_groups, names, strict=True)):
            plain = isinstance(name, str) and name and names.count(name) == 1
            yield f"/{number}/{name if plain else index}", group
