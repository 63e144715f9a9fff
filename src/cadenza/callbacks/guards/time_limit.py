"""Stopping in time."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Self

from cadenza.callback import Callback, Order
from cadenza.clock import Duration
from cadenza.engine.requests import PAUSED
from cadenza.foundation.arguments import one_of

if TYPE_CHECKING:
    from cadenza.run import Run


class TimeLimit(Callback):
    """Stops a fit when its time is over.

    It looks at the time after every batch of every stage and asks to stop at the first that ends too late, so the run
    ends in order: a stop in the middle of a validation leaves that validation without a result, and a stop in
    training does not count the epoch. Looking costs one reading of the time and never waits for the device.

    ``limit`` is a time such as "2 hours" or "90 s". ``grace`` is kept free at its end: with ``TimeLimit("2 hours",
    grace="5 minutes")`` the stop is asked for after 115 minutes, and a last checkpoint has 5 minutes left. ``of`` says
    what is measured: "fit", the wall time of this fit (what a job of a cluster has), or "clock", the time of all fits
    together, which a checkpoint keeps (``run.clock.seconds``).

    With ``Checkpoint`` the run is saved where it stands, and ``fit(..., resume="auto")`` goes on from there.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> limit = TimeLimit("0 seconds")
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[limit], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), epochs=5)
    >>> trainer.clock.batches
    1
    """

    order = Order.REPORT
    agree = "main"

    def __init__(self, limit: str | Duration, *, grace: str | Duration = "0 seconds", of: str = "fit") -> None:
        self.limit, self.grace = _seconds("limit", limit), _seconds("grace", grace)
        if self.grace.amount and self.grace.amount >= self.limit.amount:
            raise ValueError(f"grace must be less than the limit of {self.limit}, not {self.grace}")
        one_of("of", of, ("fit", "clock"))
        self.of = of
        self._allowed = self.limit.amount - self.grace.amount
        self._began = 0.0

    def explain(self) -> str:
        whose = "this fit" if self.of == "fit" else "all fits together"
        return f"stops {whose} after {self._allowed:g} seconds"

    def after_register(self, run: Run) -> None:
        self._began = monotonic()

    def after_iter(self, run: Run) -> None:
        if run.mode != "fit" or run.stop_reason is not None:
            return
        passed = monotonic() - self._began if self.of == "fit" else run.clock.seconds
        if passed >= self._allowed:
            grace = f", less {self.grace} of grace" if self.grace.amount else ""
            if run.can_save and run.training:
                run.save()  # here, in mid-epoch, so that a resume goes on after this batch
            run.stop(f"{PAUSED}{self.name}: {passed:.1f} seconds have passed; the limit is {self.limit}{grace}")

    @classmethod
    def example(cls) -> Self:
        return cls("2 hours", grace="5 minutes")


def _seconds(name: str, text: str | Duration) -> Duration:
    duration = Duration.parse(text, name)
    if duration.unit != "seconds":
        raise ValueError(
            f'{name} is a time such as "2 hours" or "90 s", not {duration}; fit(epochs=, steps=) count those'
        )
    return duration
