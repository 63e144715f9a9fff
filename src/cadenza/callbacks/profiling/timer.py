"""Where the time of an iteration goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch

from cadenza.callback import Callback, Order, without
from cadenza.callbacks.measuring.pass_measure import checked_stages, prefix_of
from cadenza.clock import Cadence, Duration
from cadenza.foundation.arguments import some_of
from cadenza.registration.checks import CallbackError

if TYPE_CHECKING:
    from cadenza.run import Run

SPANS = ("fetch", "forward", "loss", "backward", "step", "zero_grad")
TRAINED = frozenset({"backward", "step", "zero_grad"})
Sums: TypeAlias = dict[str, list[float]]
"""For each span the milliseconds so far, and how often it was played."""
_PENDING = 256


class Timer(Callback):
    """Logs the mean time in milliseconds of the parts of an iteration: fetch, forward, backward, step.

    The names are ``train/fetch_ms``, ``train/forward_ms`` and so on, at the end of each pass; with ``every="100
    steps"`` (or batches, samples, seconds) also those of that stretch of training, in the rows of iterations. ``spans``
    says which parts, some of "fetch", "forward", "loss", "backward", "step", "zero_grad"; ``stages`` says in which
    passes, some of "train", "val" and "test". A mean is over the times that the part was played: under accumulation
    a step is that of a whole window. What is played again inside a step (LBFGS) counts there and for itself. The last
    fetch, which finds the end of the loader, counts.

    It is the innermost around each part, so that what other callbacks do before and after is not counted. On a CUDA
    device the parts, except for the fetch, are timed by events on the stream and read when a report is due: it waits
    for the device at the end of a pass and never in between, where a report leaves out what is not done yet. Elsewhere
    it is the time of the host. To time more than the fetch it has to look into the step, which opens a fused one; when
    only the rate is asked for, ``Throughput`` does not.

    >>> import cadenza, torch
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model = tiny_classifier()
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = cadenza.Trainer(model, sgd, torch.nn.CrossEntropyLoss(), callbacks=[Timer()], device="cpu")
    >>> [name for name in trainer.fit(tiny_loader(), epochs=1).names() if name.endswith("_ms")]
    ['train/backward_ms', 'train/fetch_ms', 'train/forward_ms', 'train/step_ms']
    """

    order = Order.SAVE + 100
    """Behind everyone, so that it is entered last and left first."""
    passive = True

    def __init__(
        self,
        every: str | Duration | None = None,
        *,
        spans: Iterable[str] = ("fetch", "forward", "backward", "step"),
        stages: Iterable[str] = ("train",),
    ) -> None:
        self.every = None if every is None else Duration.interval(every, "every")
        if self.every is not None and self.every.unit == "epochs":
            raise ValueError(f"every epoch is logged anyway; every counts steps, batches, samples or time, not {every}")
        chosen = some_of("spans", spans, SPANS)
        self.spans = tuple(span for span in SPANS if span in chosen)
        self.stages = checked_stages(stages)
        if self.every is not None and "train" not in self.stages:
            raise ValueError("every is for stretches of training, which is not among the stages")
        if not self._played_spans():
            raise ValueError(f'{", ".join(self.spans)} are parts of training: add "train" to the stages')
        self._sums: dict[str, Sums] = {}
        self._watches: dict[tuple[str, str | None, str | None], HostWatch] = {}
        self._reported: Sums = {}
        self._cadence: Cadence | None = None
        self._events: Events | None = None

    @classmethod
    def example(cls) -> Self:
        return cls(every="2 batches", stages={"train", "val"})

    def _logs(self, prefixes: Sequence[str]) -> list[str]:
        return ["*_ms"]

    def explain(self) -> str:
        spans = self._played_spans()
        inside = [span for span in spans if span != "fetch"]
        opens = f"; looks into the step for {', '.join(inside)}" if inside else ""
        return f"times {', '.join(spans)} in {', '.join(sorted(self.stages or ()))}{opens}"

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """Around each of its spans; at the end of iterations only if something is logged there."""
        unneeded = ("after_train_iter",) if self.every is None else ()
        played = without(super().plays(), Timer, *unneeded)
        watches = {f"around_{span}": partial(self._watch, span) for span in self._played_spans()}
        for point in sorted(watches.keys() & played.keys()):
            raise CallbackError(f"{self.name}.{point} would not be played: it is where {self.name} measures the time")
        return {**played, **watches}

    def _played_spans(self) -> list[str]:
        """The spans that its stages have: a backward and a step are in training alone."""
        return [span for span in self.spans if "train" in (self.stages or ()) or span not in TRAINED]

    def _watch(self, span: str, run: Run) -> HostWatch | EventWatch:
        place = span, run.stage, run.loader_name
        watch = self._watches.get(place)
        if watch is not None and watch.began is None:
            return watch  # made once a pass, and for a span within the same span
        sums = self._sums.setdefault(prefix_of(run), {})
        if self._events is not None and span != "fetch":  # data is waited for on the host
            return EventWatch(self._events, sums, span)
        watch = self._watches[place] = HostWatch(sums.setdefault(span, [0.0, 0]))
        return watch

    # Reports --------------------------------------------------------------------------------------------------------

    def after_register(self, run: Run) -> None:
        self._events = Events(run.device) if run.device.type == "cuda" else None
        self._sums, self._watches, self._reported, self._cadence = {}, {}, {}, None

    def _begin(self, run: Run) -> None:
        if run.stage in (self.stages or ()):
            self._sums[prefix_of(run)] = {}
            self._watches.clear()

    before_val_epoch = before_test_epoch = _begin

    def before_train_epoch(self, run: Run) -> None:
        self._begin(run)
        self._reported = {}
        if self.every is not None and self._cadence is None:
            self._cadence = Cadence(self.every, run.clock)

    def after_train_iter(self, run: Run) -> None:
        if self._cadence is not None and self._cadence.due():
            if self._events is not None:
                self._events.read_those_done()
            sums = self._sums.get(prefix_of(run), {})
            self._log(run, sums, self._reported)
            self._reported = {span: list(sum_) for span, sum_ in sums.items()}

    def _end(self, run: Run) -> None:
        if self._events is not None:
            self._events.read_all()
        self._watches.clear()
        self._log(run, self._sums.pop(prefix_of(run), {}), {})

    after_train_epoch = after_val_epoch = after_test_epoch = _end

    def _log(self, run: Run, sums: Sums, before: Sums) -> None:
        for span in self.spans:
            total, played = sums.get(span, (0.0, 0))
            earlier, played_earlier = before.get(span, (0.0, 0))
            if played > played_earlier:
                mean = (total - earlier) / (played - played_earlier)
                run.log(f"{prefix_of(run)}{span}_ms", mean, over="last")

    def close(self) -> None:
        self._sums, self._watches, self._events = {}, {}, None


def _add(sums: Sums, span: str, milliseconds: float) -> None:
    entry = sums.setdefault(span, [0.0, 0])
    entry[0] += milliseconds
    entry[1] += 1


class HostWatch:
    """Adds the time of the host between entering and leaving to a sum."""

    __slots__ = ("began", "entry")

    def __init__(self, entry: list[float]) -> None:
        self.entry = entry
        self.began: float | None = None

    def __enter__(self) -> None:
        self.began = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        began, self.began = self.began, None
        if error is None and began is not None:
            entry = self.entry
            entry[0] += (perf_counter() - began) * 1000
            entry[1] += 1


class EventWatch:
    """Marks the stream at entering and leaving; the time between the marks is added later."""

    def __init__(self, events: Events, sums: Sums, span: str) -> None:
        self.events, self.sums, self.span = events, sums, span

    def __enter__(self) -> None:
        self.began = self.events.mark()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.events.add(self.sums, self.span, self.began, self.events.mark())


class Events:
    """Marks on the stream of a CUDA device, used again once they are read."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: list[Any] = []
        self._pending: deque[tuple[Sums, str, Any, Any]] = deque()

    def mark(self) -> Any:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def add(self, sums: Sums, span: str, began: Any, ended: Any) -> None:
        self._pending.append((sums, span, began, ended))
        if len(self._pending) >= _PENDING:
            self.read_those_done()

    def read_those_done(self) -> None:
        """Adds up what the device has passed already, without waiting for the rest."""
        while self._pending and self._pending[0][3].query():
            sums, span, began, ended = self._pending.popleft()
            _add(sums, span, began.elapsed_time(ended))
            self._free += (began, ended)

    def read_all(self) -> None:
        """Waits for the device and adds up everything; a report at the end of a pass is due."""
        if self._pending:
            self._pending[-1][3].synchronize()
        self.read_those_done()
