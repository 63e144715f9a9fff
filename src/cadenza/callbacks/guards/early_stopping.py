"""Stopping when a metric no longer improves, is good enough, has gone astray, or is no number any more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

from cadenza.callback import Callback, Order, infer_mode
from cadenza.callbacks.guards.monitored_metric import newest_row, refuse_unknown
from cadenza.foundation.arguments import at_least_zero, flags, is_number, is_whole, metric, one_of, whole
from cadenza.foundation.warn import warn
from cadenza.history import Row

if TYPE_CHECKING:
    from cadenza.run import Run


class Patience:
    """Counts the checks in a row that brought no improvement; ``EarlyStopping`` for a loop of your own.

    The first value is an improvement. A later one is, if it is better than the best by more than ``min_delta``: equal
    is not better, and neither is NaN or infinity.

    >>> patience = Patience(2, mode="min")
    >>> [patience.spent(loss) for loss in (0.5, 0.4, 0.4, 0.6)]
    [False, False, False, True]
    """

    def __init__(self, patience: int | None, *, mode: str = "min", min_delta: float = 0.0) -> None:
        if patience is not None and not is_whole(patience, 1):
            raise ValueError(f"patience is a whole number of at least 1, or None for no end to it, not {patience!r}")
        one_of("mode", mode, ("min", "max"))
        at_least_zero("min_delta", min_delta)
        self.patience, self.mode, self.min_delta = patience, mode, float(min_delta)
        self.best: float | None = None
        self.bad = 0

    def better(self, value: float, than: float) -> bool:
        """Whether ``value`` lies on the better side of ``than``; equal is not better, and NaN never is."""
        return value < than if self.mode == "min" else value > than

    def spent(self, value: float) -> bool:
        """Counts one check; True at the last bad one that was allowed, and at every further bad one."""
        delta = self.min_delta if self.mode == "max" else -self.min_delta
        if math.isfinite(value) and (self.best is None or self.better(value, self.best + delta)):
            self.best, self.bad = float(value), 0
            return False
        self.bad += 1
        return self.patience is not None and self.bad >= self.patience


class EarlyStopping(Callback):
    """Stops the fit when a metric no longer improves.

    It checks at the end of an epoch, after validation, tests and the learning rate; a validation in the middle of an
    epoch (``validate_every="100 steps"``) is checked as soon as it ends. Only a value that was newly measured counts as
    a check: epochs without validation do not use up patience. The reason that it gives says the numbers.

    ``monitor`` names the metric; ``run.best`` and ``after_best`` follow it too. ``patience=p`` stops at the p-th check
    in a row that is not better than the best so far by more than ``min_delta``; equal is not better. ``patience=None``
    never stops for that. ``mode`` is "min" or "max"; if it is None, the name of the metric decides, and
    ``trainer.explain()`` shows what was decided. ``threshold`` is good enough: the fit stops at the first value that is
    better than it. ``divergence`` is too bad: the fit stops when ``divergence_patience`` checks in a row were worse
    than it. With ``check_finite`` the fit stops at the first NaN or infinity; without, those are bad checks. These two
    are no good ends, and are warned of.

    A further fit after such a stop has the whole patience again, and the best value stays.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> stopping = EarlyStopping("train/loss", patience=2, min_delta=10)
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[stopping], device="cpu")
    >>> len(trainer.fit(tiny_loader(), epochs=10)["train/loss"])
    3
    """

    order = Order.MEASURE + 50
    """After those who measure, and before those who save, so that a checkpoint holds the count of this check."""
    agree = "main"

    def __init__(
        self,
        monitor: str = "val/loss",
        patience: int | None = 3,
        *,
        mode: str | None = None,
        min_delta: float = 0.0,
        threshold: float | None = None,
        divergence: float | None = None,
        divergence_patience: int = 1,
        check_finite: bool = True,
    ) -> None:
        metric("monitor", monitor)
        for name, bound in (("threshold", threshold), ("divergence", divergence)):
            if bound is not None and not is_number(bound):
                raise ValueError(f"{name} is a finite number that the metric is compared with, or None, not {bound!r}")
        whole("divergence_patience", divergence_patience, 1)
        flags(check_finite=check_finite)
        self.monitor, self.mode = monitor, mode
        self.threshold, self.divergence, self.check_finite = threshold, divergence, check_finite
        chosen = mode if mode is not None else infer_mode(monitor)
        self._progress = Patience(patience, mode=chosen, min_delta=min_delta)
        self._astray = Patience(divergence_patience, mode=chosen)
        self._best_at = ""
        self._checked: Row | None = None
        self._place: int | None = None
        """Where in the history that row stands, which is all that a resumed run knows of it."""

    @property
    def best(self) -> float | None:
        """The best value so far."""
        return self._progress.best

    @property
    def bad(self) -> int:
        """How many checks in a row brought no improvement."""
        return self._progress.bad

    def explain(self) -> str:
        inferred = "" if self.mode else ", inferred from its name"
        better = "lower" if self._progress.mode == "min" else "higher"
        parts = [f"checks {self.monitor} ({better} is better{inferred})"]
        if self._progress.patience is not None:
            delta = f" by more than {self._progress.min_delta:g}" if self._progress.min_delta else ""
            parts.append(f"stops at check {self._progress.patience} in a row that does not improve{delta}")
        if self.threshold is not None:
            parts.append(f"stops when it is better than {self.threshold:g}")
        if self.divergence is not None:
            parts.append(f"stops at check {self._astray.patience} in a row that is worse than {self.divergence:g}")
        if self.check_finite:
            parts.append("stops when it is not finite")
        return ", ".join(parts)

    # Points ---------------------------------------------------------------------------------------------------------

    def before_run(self, run: Run) -> None:
        for count in (self._progress, self._astray):
            if run.mode == "fit" and count.patience is not None and count.bad >= count.patience:
                count.bad = 0  # the last fit ended for it; this one was asked for all the same

    def after_val_epoch(self, run: Run) -> None:
        if run.mode == "fit" and run.is_nested:  # else the end of the epoch, which follows, looks
            self._check_new(run)

    def after_epoch(self, run: Run) -> None:
        cut_short = run.stop_reason is not None and run.clock.epochs == run.epoch
        if cut_short:
            return  # means over a part of an epoch are not to be compared with those over whole ones
        refuse_unknown(run, self._name, f"{self.name} monitors it")
        self._check_new(run)

    # What is checked ------------------------------------------------------------------------------------------------

    def _check_new(self, run: Run) -> None:
        row = newest_row(run, self._name) if self._name in run.metrics else None
        if row is None or row is self._checked:
            return
        rows = run.history.rows
        place = next(place for place in reversed(range(len(rows))) if rows[place] is row)
        if self._checked is None and place == self._place:
            return  # it was checked before the run was broken off
        self._checked, self._place = row, place
        value = run.metrics[self._name]
        reason = self.check(value, f"epoch {run.epoch + 1}, step {run.clock.steps}")
        if reason is None:
            return
        if run.is_main and self._has_failed(value):
            warn(f"{self.name}: {reason}. The run is stopped")
        run.stop(f"{self.name}: {reason}")

    def _has_failed(self, value: float) -> bool:
        """Whether the fit stops because something is wrong, not because it is done."""
        return (self.check_finite and not math.isfinite(value)) or (
            self.divergence is not None and self._astray.bad >= (self._astray.patience or 1)
        )

    @property
    def _name(self) -> str:
        return str(self.monitor)

    def check(self, value: float, at: str = "") -> str | None:
        """Counts one check of ``value``; the reason to stop, if there is one."""
        progress, name = self._progress, self.monitor
        had = progress.best
        spent = progress.spent(value)
        if progress.best != had:
            self._best_at = at
        if self.check_finite and not math.isfinite(value):
            return f"{name} is {value} and so not finite"
        if self.threshold is not None and progress.better(value, self.threshold):
            return f"{name} is {value:g} and so better than {self.threshold:g}, which is good enough"
        if self._is_astray(value):
            return f"{name} is {value:g}; {self._astray.bad} checks in a row were worse than {self.divergence:g}"
        if spent:
            return (
                f"{name} has not improved{f' by more than {progress.min_delta:g}' if progress.min_delta else ''} for "
                f"{progress.bad} checks in a row: it is {value:g}, the best was {_number(self.best, self._best_at)}"
            )
        return None

    def _is_astray(self, value: float) -> bool:
        if self.divergence is None:
            return False
        astray = math.isnan(value) or self._astray.better(self.divergence, value)
        self._astray.bad = self._astray.bad + 1 if astray else 0
        return self._astray.bad >= (self._astray.patience or 1)

    # State ----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        counts = {"bad": self.bad, "astray": self._astray.bad}
        return {"best": self.best, "best_at": self._best_at, **counts, "checked": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._progress.best, self._progress.bad = state["best"], int(state["bad"])
        self._best_at, self._astray.bad = state["best_at"], int(state["astray"])
        self._checked, self._place = None, state.get("checked")

    @classmethod
    def example(cls) -> Self:
        return cls("val/loss", patience=2)


def _number(best: float | None, at: str) -> str:
    return "none" if best is None else f"{best:g}{f' ({at})' if at else ''}"
