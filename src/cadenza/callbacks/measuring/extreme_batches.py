"""Keeping the batches that a model finds hardest or easiest."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.callback import Callback, Order, infer_mode, without
from cadenza.foundation.arguments import check, flags, one_of, some_of, whole
from cadenza.foundation.tree import entries_and_fields, map_tree, with_dicts
from cadenza.foundation.warn import warn
from cadenza.history import as_scalar, read, unknown_metric
from cadenza.points import STAGES

if TYPE_CHECKING:
    from cadenza.run import Run

_KEEP = {"worst": ("worst",), "best": ("best",), "both": ("best", "worst")}


@dataclass(frozen=True)
class ExtremeBatch:
    """A batch that was kept, with all its tensors on the CPU, and where it stood."""

    value: float
    epoch: int
    batch_idx: int
    batch: Any
    output: Any = None


class ExtremeBatches(Callback):
    """Keeps the worst or the best batch of each pass, by its loss or by a metric, to be looked at afterwards.

    The result is in ``run.store["extreme_batches"]`` and in ``found`` of the callback when a pass ends, and stays until
    the next pass over the same data: by "train" or "val" (with a named loader "val/night") and then by "worst" or
    "best" an ``ExtremeBatch`` with ``value``, ``epoch``, ``batch_idx``, ``batch`` and ``output``. The batch is kept as
    it was at the end of its iteration, as a copy on the CPU. Of equal ones the first is kept; NaN is worse than
    anything. A skipped batch does not count. Each process looks at its own batches. Checkpoints do not hold them: a
    resumed run looks at the batches that are left of its pass, and at whole passes after it.

    ``by`` is "loss", the name of a metric that is logged in each iteration, or a function of the run that returns one
    number. ``keep`` is "worst", "best" or "both". ``mode`` says whether "min" or "max" is better; for names it is
    inferred, for a function it must be given. ``stages`` are the passes to look at: some of train, val, test and pred.
    With ``outputs=True`` what the model returned is kept too.

    On a GPU nothing waits in each batch: the values are read together every ``read_every`` batches, and until then that
    many batches are kept on the device, as copies, since which of them to keep is not known. ``read_every=1`` keeps
    none of them and waits each time. On the CPU each value is read at once, and only a batch that is kept is copied.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, extremes = tiny_classifier(), ExtremeBatches(keep="both")
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[extremes], device="cpu")
    >>> _ = trainer.fit(tiny_loader(48), tiny_loader(24), epochs=2)
    >>> worst = trainer.store["extreme_batches"]["val"]["worst"]
    >>> worst.epoch, worst.batch_idx, worst.batch[0].shape
    (1, 1, torch.Size([8, 4]))
    """

    order = Order.MEASURE
    passive = True

    def __init__(
        self,
        by: str | Callable[[Run], Any] = "loss",
        *,
        keep: str = "worst",
        mode: str | None = None,
        stages: Iterable[str] = ("train", "val"),
        outputs: bool = False,
        read_every: int = 16,
    ) -> None:
        check(isinstance(keep, str) and keep in _KEEP, 'keep is "worst", "best" or "both"', keep)
        one_of("mode", mode, ("min", "max"), or_none=True)
        whole("read_every", read_every, 1, "is")
        flags(outputs=outputs)
        self.by, self.keep, self.outputs, self.read_every = by, keep, outputs, read_every
        self.mode = _mode(by, mode)
        self.stages = _stages(stages, by)
        self.found: dict[str, dict[str, ExtremeBatch]] = {}
        self._open: dict[str, _Search] = {}

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """Rows of the history are listened to only if one of their metrics is what counts."""
        by_metric = isinstance(self.by, str) and self.by != "loss"
        return without(super().plays(), ExtremeBatches, *(() if by_metric else ("after_log",)))

    def explain(self) -> str:
        what = self.by if isinstance(self.by, str) else getattr(self.by, "__name__", "a function")
        batches = "the best and the worst batch" if self.keep == "both" else f"the {self.keep} batch"
        better = "lower" if self.mode == "min" else "higher"
        return f"keeps {batches} of a pass by {what}, {better} is better"

    # Points: all of them outside the step, so that it stays closed ----------------------------------------------------

    def after_register(self, run: Run) -> None:
        self.found = {}
        self._open.clear()

    def after_iter(self, run: Run) -> None:
        if "forward" in run.skipped:
            return
        search = self._search(run)
        search.batches += 1
        if self.by == "loss":
            loss = getattr(run, "loss", None)
            if loss is not None:
                self._offer(run, search, loss)
        elif callable(self.by):
            with torch.no_grad():
                self._offer(run, search, self.by(run))

    def after_log(self, run: Run) -> None:
        """A metric counts in the iteration that logged it."""
        row, name = run.row, str(self.by)
        if row is None or name not in row or not hasattr(run, "batch"):  # without a batch it is the row of a pass
            return
        if self.stages is not None and run.stage in self.stages:
            self._offer(run, self._search(run), row.raw()[name])

    def _end(self, run: Run) -> None:
        search = self._open.pop(_pass(run), None)
        if search is None:
            return
        if not search.seen and search.batches and str(self.by).startswith(f"{_pass(run)}/"):
            raise KeyError(self._not_logged(run))
        kept = search.kept()
        if kept:
            self.found[_pass(run)] = kept
            run.store["extreme_batches"] = self.found

    after_train_epoch = after_val_epoch = after_test_epoch = after_pred_epoch = _end

    def after_run(self, run: Run) -> None:
        """A name that is of no stage, such as ``lr``, may be logged in any pass: only now it is known to be in none."""
        if isinstance(self.by, str) and self.by != "loss" and run.mode == "fit" and not self.found:
            warn(f"{self.name} kept nothing: {self._not_logged(run)}")

    def close(self) -> None:
        self._open.clear()

    def _not_logged(self, run: Run) -> str:
        name = str(self.by)
        if name in run.metrics:
            return f"{self.name}: {name!r} is measured once a pass, not in each iteration, so it tells no batches apart"
        return f"{self.name} judges batches by it, but there is {unknown_metric(name, run.metrics)}"

    # What is judged -------------------------------------------------------------------------------------------------

    def _search(self, run: Run) -> _Search:
        key = _pass(run)
        search = self._open.get(key)
        if search is None:
            search = self._open[key] = _Search(_KEEP[self.keep], self.mode == "max", self.read_every)
        return search

    def _offer(self, run: Run, search: _Search, value: Any) -> None:
        score = as_scalar(self.name, value, copy=False)
        if self.read_every == 1 or not isinstance(score, Tensor) or score.device.type == "cpu":
            value = float(score)  # on a device this waits, as asked for
            if kinds := search.beaten(value):
                search.keep(kinds, value, self._candidate(run, value))
        else:
            search.wait_for(self._candidate(run, score))

    def _candidate(self, run: Run, score: float | Tensor) -> _Candidate:
        output = getattr(run, "output", None) if self.outputs else None
        return _Candidate(score, run.epoch, run.batch_idx, run.batch, output).copied()


@dataclass
class _Candidate:
    score: float | Tensor
    epoch: int
    batch_idx: int
    batch: Any
    output: Any

    def copied(self, device: torch.device | None = None) -> _Candidate:
        score, batch, output = (copied(part, device) for part in (self.score, self.batch, self.output))
        return dataclasses.replace(self, score=score, batch=batch, output=output)


class _Search:
    """The extremes of one pass so far, and the batches whose values have not been read yet."""

    def __init__(self, kinds: tuple[str, ...], higher_is_better: bool, read_every: int) -> None:
        self.extremes: dict[str, tuple[float, _Candidate]] = {}
        self.kinds, self.higher_is_better, self.read_every = kinds, higher_is_better, read_every
        self.waiting: list[_Candidate] = []
        self.batches = 0
        self.seen = False

    def wait_for(self, candidate: _Candidate) -> None:
        self.seen = True
        self.waiting.append(candidate)
        if len(self.waiting) >= self.read_every:
            self.read_waiting()

    def read_waiting(self) -> None:
        """Waits for the device, once for all values since the last time."""
        waiting, self.waiting = self.waiting, []
        for candidate, value in zip(waiting, read(one.score for one in waiting), strict=True):
            self.keep(self.beaten(value), value, candidate)

    def beaten(self, value: float) -> list[str]:
        """The kinds of extremes of which ``value`` is a new one."""
        self.seen = True
        return [k for k in self.kinds if k not in self.extremes or self.beats(k, value, self.extremes[k][0])]

    def keep(self, kinds: list[str], value: float, candidate: _Candidate) -> None:
        for kind in kinds:
            self.extremes[kind] = (value, candidate)

    def beats(self, kind: str, value: float, other: float) -> bool:
        if math.isnan(value) or math.isnan(other):
            return math.isnan(value if kind == "worst" else other) and not (math.isnan(value) and math.isnan(other))
        return value > other if (kind == "best") == self.higher_is_better else value < other

    def kept(self) -> dict[str, ExtremeBatch]:
        self.read_waiting()
        found = {}
        for kind, (value, candidate) in self.extremes.items():
            one = candidate.copied(torch.device("cpu"))
            found[kind] = ExtremeBatch(value, one.epoch, one.batch_idx, one.batch, one.output)
        return found


def copied(value: Any, device: torch.device | None = None) -> Any:
    """``value`` with a copy of each tensor, without its graph, on ``device`` or where it is.

    >>> copied({"x": [torch.ones(1), "text"]})
    {'x': [tensor([1.]), 'text']}
    """

    def copy(one: Any) -> Any:
        if isinstance(one, Tensor):
            return one.detach().to(one.device if device is None else device, copy=True)
        if callable(getattr(one, "clone", None)) and callable(getattr(one, "to", None)):
            return one.clone() if device is None else one.clone().to(device)
        return one

    return map_tree(value, copy, entries_and_fields, with_dicts)


def _pass(run: Run) -> str:
    return f"{run.stage}/{run.loader_name}" if run.loader_name else f"{run.stage}"


# Arguments ----------------------------------------------------------------------------------------------------------


def _mode(by: Any, mode: str | None) -> str:
    if isinstance(by, str) and by:
        return mode or infer_mode(by)
    check(callable(by), 'by is "loss", the name of a metric or a function of the run', by, TypeError)
    if mode is None:
        raise ValueError('say whether "min" or "max" of what the function returns is better: mode="min"')
    return mode


def _stages(stages: Iterable[str], by: Any) -> frozenset[str]:
    chosen = some_of("stages", stages, STAGES)
    if by == "loss" and "pred" in chosen:
        raise ValueError("a prediction has no loss: give by=, a function of the run, for the stage pred")
    return chosen
