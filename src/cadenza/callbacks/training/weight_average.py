"""The mean of the weights of several moments of a training."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cadenza.callback import Callback, Order, infer_mode
from cadenza.callbacks.guards.monitored_metric import newest_row, refuse_unknown
from cadenza.callbacks.training.averaging import (
    averaged_names,
    copied,
    fit_to,
    put_weights,
    start_average,
    update_average,
    weights_of,
)
from cadenza.callbacks.training.precise_batchnorm import has_statistics, recompute_statistics, rereadable
from cadenza.clock import Duration
from cadenza.foundation.arguments import flags, one_of, text, whole
from cadenza.foundation.arguments import loader as loader_or_none
from cadenza.foundation.warn import warn

if TYPE_CHECKING:
    from cadenza.run import Run


class WeightAverage(Callback):
    """Gives the model at the end of a fit the mean of the weights that it had at several moments.

    Which moments: at every multiple of ``every`` (``"1 epoch"`` or ``"100 steps"``) that comes after ``start`` (such as
    ``"5 epochs"``), as in stochastic weight averaging; or with ``best=k`` the ends of the k epochs with the best value
    of ``monitor``, where ``mode`` is "min", "max" or inferred from the name, equal is not better, and an epoch in which
    the metric was not measured does not take part. Those k copies are kept in the memory of the CPU.

    When a fit ended in order, the mean is put into the model (not with ``apply=False``; then ``copy_to(module)`` does
    it on request). ``batchnorm="recompute"`` then computes the statistics of BatchNorm anew from the training loader,
    or ``loader``, over ``batches`` batches or all of them; ``"average"`` takes the mean of the statistics. The moments
    that were averaged are the state, and a second fit goes on with them.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, average = tiny_classifier(), WeightAverage(start="1 epoch")
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[average], device="cpu")
    >>> _ = trainer.fit(tiny_loader(), epochs=4)
    >>> average.count
    3
    """

    order = Order.REPORT  # after those who measure, before those who save
    same_on_ranks = ("start", "every", "best", "monitor", "apply")

    def __init__(
        self,
        *,
        start: str | Duration = "0 epochs",
        every: str | Duration = "1 epoch",
        best: int | None = None,
        monitor: str | None = None,
        mode: str | None = None,
        apply: bool = True,
        batchnorm: str = "recompute",
        batches: int | None = None,
        loader: Iterable[Any] | None = None,
    ) -> None:
        self.start, self.every = Duration.parse(start, "start"), Duration.interval(every, "every")
        _check_arguments(self.every, best, monitor, mode, batchnorm, batches)
        flags(apply=apply)
        loader_or_none("loader", loader)
        self.best, self.monitor, self.mode = best, monitor, mode
        self._sign = -1.0 if (mode or infer_mode(monitor or "loss")) == "max" else 1.0
        self.apply, self.batchnorm, self.batches, self.loader = apply, batchnorm, batches, loader
        self.owns = frozenset({"final weights"} if apply else ())
        self._count = 0
        self._mean: dict[str, Tensor] = {}
        self._members: list[dict[str, Any]] = []

    @property
    def count(self) -> int:
        """How many moments the mean is of."""
        return self._count if self.best is None else len(self._members)

    def explain(self) -> str:
        if self.best is None:
            return f"every {self.every} after {self.start}"
        better = "highest" if self._sign < 0 else "lowest"
        inferred = "" if self.mode else ", inferred from its name"
        return f"the {self.best} epochs with the {better} {self.monitor}{inferred}"

    # Points ---------------------------------------------------------------------------------------------------------

    def before_train_epoch(self, run: Run) -> None:
        if self.apply and self._recomputes(run.module):
            rereadable(run, self.loader, self.name)  # better refused now than at the end

    def after_step(self, run: Run) -> None:
        clock, start = run.clock, self.start
        if self.best is None and self.every.unit == "steps" and clock.steps % self.every.amount == 0:
            begun = clock.epochs >= start.amount if start.unit == "epochs" else _after(run, start)
            if begun:
                self._add(run.module)

    def after_epoch(self, run: Run) -> None:
        if run.clock.epochs <= run.epoch:
            return  # a stop ended it early
        if self.best is not None:
            self._compete(run)
        elif self.every.unit == "epochs" and run.clock.epochs % self.every.amount == 0 and _after(run, self.start):
            self._add(run.module)

    def after_run(self, run: Run) -> None:
        if not self.apply or run.mode != "fit":
            return
        if self.count == 0:
            warn(f"{self.name} has nothing to average: {self.explain()}")
            return
        self.copy_to(run.module)
        if self._recomputes(run.module):
            recompute_statistics(run, self.batches, self.loader, self.name)

    def _recomputes(self, module: nn.Module) -> bool:
        return self.batchnorm == "recompute" and any(has_statistics(part) for part in module.modules())

    # The mean -------------------------------------------------------------------------------------------------------

    def _add(self, module: nn.Module) -> None:
        weights = weights_of(module)
        if not self._mean:
            self._mean = start_average(weights)
        fit_to(module, self._mean, self.name)
        self._count += 1
        moving = averaged_names(module, statistics=True)
        averaged = [name for name in weights if name in moving]
        update_average([self._mean[n] for n in averaged], [weights[n] for n in averaged], 1.0 - 1.0 / self._count)
        with torch.no_grad():
            for name in weights.keys() - moving:
                self._mean[name].copy_(weights[name])

    def _compete(self, run: Run) -> None:
        """Keeps the weights of this epoch if it is among the best so far. Reads the metric, which may wait."""
        monitor = str(self.monitor)
        row = newest_row(run, monitor)
        if row is None:
            refuse_unknown(run, monitor, f"{self.name} monitors it")
            return
        value = row[monitor]
        if math.isnan(value):
            return
        members, sign = self._members, self._sign
        if len(members) < int(self.best or 0) or sign * value < sign * members[-1]["value"]:
            weights = copied(weights_of(run.module), torch.device("cpu"))
            members.append({"value": value, "epoch": run.epoch, "weights": weights})
            members.sort(key=lambda member: sign * member["value"])  # stable: of equals the earlier one stays
            del members[self.best :]

    def copy_to(self, module: nn.Module) -> None:
        """Puts the mean into ``module``."""
        if self.count == 0:
            raise RuntimeError(f"there is nothing to average yet: {self.explain()}")
        mean = self._mean if self.best is None else self._mean_of_members(module)
        fit_to(module, mean, self.name)
        put_weights(module, mean)

    def _mean_of_members(self, module: nn.Module) -> dict[str, Tensor]:
        all_weights = [member["weights"] for member in self._members]
        mean = dict(all_weights[0])
        for name in averaged_names(module, statistics=True) & mean.keys():
            mean[name] = torch.stack([weights[name].double() for weights in all_weights]).mean(0)
        return mean

    def state_dict(self) -> dict[str, Any]:
        if self.count == 0:
            return {}
        if self.best is None:
            return {"count": self._count, "mean": dict(self._mean)}
        return {"members": [dict(member) for member in self._members]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count = state.get("count", 0)
        self._mean = copied(state.get("mean", {}))
        self._members = [{**member, "weights": copied(member["weights"])} for member in state.get("members", [])]


def _after(run: Run, start: Duration) -> bool:
    return float(getattr(run.clock, start.unit)) > start.amount


def _check_arguments(
    every: Duration, best: int | None, monitor: str | None, mode: str | None, batchnorm: str, batches: int | None
) -> None:
    if every.unit not in ("epochs", "steps"):
        raise ValueError(f"every counts epochs or steps, not {every.unit}")
    if (best is None) != (monitor is None):
        raise ValueError(
            "best=k, the number of epochs, and monitor, the metric that ranks them, are given together, not "
            f"best={best!r} and monitor={monitor!r}"
        )
    if best is not None:
        whole("best", best, 1)
        text("monitor", monitor, 'the name of a metric, such as "val/loss"')
    one_of("mode", mode, ("min", "max"), or_none=True)
    one_of("batchnorm", batchnorm, ("recompute", "average"))
    whole("batches", batches, 1, or_none=True)
