"""How fast training goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import torch

from cadenza.callback import Callback, Order, without
from cadenza.clock import Cadence, Clock, Duration

if TYPE_CHECKING:
    from cadenza.run import Run

COUNTED = ("samples", "tokens", "batches", "steps")


class Throughput(Callback):
    """Logs how many samples, tokens, batches and steps a second the training makes, and how long an epoch of it takes.

    ``train/samples_per_second``, ``train/tokens_per_second`` (if the batches have tokens),
    ``train/batches_per_second``, ``train/steps_per_second`` and ``train/seconds`` are logged at the end of the training
    pass of each epoch; with ``every="100 steps"`` (or batches, samples, seconds) the rates of that stretch as well, in
    the rows of the iterations. Samples and tokens are those of the clock, as ``MainCallback.count`` counts them; under
    many processes they are those of this one. The time of validations and tests inside an epoch is left out, that of
    fetching data is not.

    It plays outside the step only. At the end of the pass it waits for the device once, so that the rate of an epoch is
    that of work done; the rates in between do not wait, and the device may be a few batches behind them.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[Throughput()], device="cpu")
    >>> history = trainer.fit(tiny_loader(24), epochs=2)
    >>> round(history["train/samples_per_second"][0] * history["train/seconds"][0])
    24
    """

    order = Order.MEASURE

    def __init__(self, every: str | Duration | None = None) -> None:
        self.every = None if every is None else Duration.interval(every, "every")
        if self.every is not None and self.every.unit == "epochs":
            raise ValueError(f"every epoch is logged anyway; every counts steps, batches, samples or time, not {every}")
        self._pass: Stretch | None = None
        self._window: Stretch | None = None
        self._cadence: Cadence | None = None
        self._nested: list[float] = []

    @classmethod
    def example(cls) -> Self:
        return cls(every="2 batches")

    def _logs(self, prefixes: Sequence[str]) -> list[str]:
        return ["train/seconds", *(f"train/{name}_per_second" for name in COUNTED)]

    def explain(self) -> str:
        return "each epoch" if self.every is None else f"each epoch and every {self.every}"

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """At the end of iterations only if something is logged there."""
        unneeded = ("after_train_iter",) if self.every is None else ()
        return without(super().plays(), Throughput, *unneeded)

    def after_register(self, run: Run) -> None:
        self._pass = self._window = self._cadence = None
        self._nested.clear()

    def before_train_epoch(self, run: Run) -> None:
        self._pass, self._window = Stretch(run.clock), Stretch(run.clock)
        if self.every is not None and self._cadence is None:
            self._cadence = Cadence(self.every, run.clock)

    def _pause(self, run: Run) -> None:
        self._nested.append(perf_counter())

    before_val_epoch = before_test_epoch = _pause

    def _go_on(self, run: Run) -> None:
        seconds = perf_counter() - self._nested.pop() if self._nested else 0.0
        for stretch in (self._pass, self._window):
            if stretch is not None:
                stretch.leave_out(seconds)

    after_val_epoch = after_test_epoch = _go_on

    def after_train_iter(self, run: Run) -> None:
        if self._cadence is not None and self._window is not None and self._cadence.due():
            self._log(run, self._window.rates(run.clock, perf_counter()))
            self._window = Stretch(run.clock)

    def after_train_epoch(self, run: Run) -> None:
        if self._pass is not None:
            wait_for(run.device)
            now = perf_counter()
            self._log(run, self._pass.rates(run.clock, now))
            run.log("train/seconds", now - self._pass.began)
        self._pass = self._window = None

    def _log(self, run: Run, rates: dict[str, float]) -> None:
        run.log({f"train/{name}_per_second": rate for name, rate in rates.items()}, over="last")


class Stretch:
    """A stretch of training: when it began, and what the clock said then."""

    def __init__(self, clock: Clock) -> None:
        self.counts = {unit: getattr(clock, unit) for unit in COUNTED}
        self.began = perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Takes out time that was not spent on training."""
        self.began += seconds

    def rates(self, clock: Clock, now: float) -> dict[str, float]:
        """What was counted a second until ``now``; without tokens if there were none."""
        seconds = now - self.began
        made = {unit: getattr(clock, unit) - count for unit, count in self.counts.items()}
        wanted = [unit for unit in COUNTED if unit != "tokens" or made[unit]]
        return {unit: made[unit] / seconds for unit in wanted} if seconds > 0 else {}


def wait_for(device: torch.device) -> None:
    """Returns when the work that was given to ``device`` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu" and torch.accelerator.is_available():
        torch.accelerator.synchronize(device)
