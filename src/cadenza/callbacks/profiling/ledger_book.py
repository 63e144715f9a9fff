"""The books of a cost ledger: what was measured, as a table and as a trace."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeAlias

from cadenza.callbacks.profiling.count_host_waits import HostWaits
from cadenza.foundation.text_table import text_table

Call: TypeAlias = Callable[..., Any]
_LOOP = "loop"
_KEPT = 50_000
"""The trace holds the last so many slices."""
_LISTED, _LITTLE = 10, 1_000_000
"""Outside of batches the table lists so many in any case, and of the others those that took so many nanoseconds."""


class Slice(NamedTuple):
    """A time that a callback took. ``own`` is without that of callbacks that were called inside it; ``calls`` is 0 for
    the entering and leaving of what it holds around a span, which belong to the call that made it."""

    who: str
    point: str
    calls: int
    begin: int
    took: int
    own: int
    waits: int


class Meter:
    """Times calls, and tells calls inside calls apart."""

    def __init__(self, waits: HostWaits) -> None:
        self.waits = waits
        self.inside = 0
        self.waits_inside = 0

    def measure(self, label: tuple[str, str, int], sink: Callable[[Slice], Any], call: Call, *args: Any) -> Any:
        """Makes the call, and puts down under ``label`` (who, point, calls) what it took, also if it raises."""
        inside, waits_inside = self.inside, self.waits_inside
        self.inside = self.waits_inside = 0
        waits, begin = self.waits.count, perf_counter_ns()
        try:
            return call(*args)
        finally:
            took, waited = perf_counter_ns() - begin, self.waits.count - waits
            sink(Slice(*label, begin, took, took - self.inside, waited - self.waits_inside))
            self.inside, self.waits_inside = inside + took, waits_inside + waited


class MeasuredBatch:
    """What is known of the batch that is measured at this moment."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.start()

    def start(self) -> None:
        self.slices.clear()
        self.waits_before = 0
        self.fetch = (0, 0)
        self.disturbed = False

    def begin_fetch(self, now: int, waits: int) -> None:
        """``waits`` is how many there were until now; some may be of those who just played before the fetch."""
        self.fetch = (now, 0)
        self.waits_before = waits - sum(one.waits for one in self.slices)

    def end_fetch(self, now: int) -> None:
        """What others took in the meantime is theirs."""
        begin = self.fetch[0]
        self.fetch = (begin, now - begin - sum(one.took for one in self.slices if one.begin >= begin))

    @property
    def begin(self) -> int:
        return min([self.fetch[0], *(one.begin for one in self.slices)])


@dataclass
class Cost:
    """What a callback cost at a point, in nanoseconds."""

    calls: int = 0
    time: int = 0
    waits: int = 0

    def add(self, one: Slice) -> None:
        self.calls += one.calls
        self.time += one.own
        self.waits += one.waits


@dataclass
class StageCosts:
    """The batches of one stage that were measured."""

    batches: int = 0
    time: int = 0
    fetching: int = 0
    waits: int = 0
    costs: dict[tuple[str, str], Cost] = field(default_factory=dict)

    def add(self, batch: MeasuredBatch, time: int, waits: int) -> None:
        self.batches += 1
        self.time += time
        self.fetching += batch.fetch[1]
        self.waits += waits
        for one in batch.slices:
            self.costs.setdefault((one.who, one.point), Cost()).add(one)

    def shares(self) -> dict[str, float]:
        """For each callback its share of the time of a batch, at all points together."""
        times: dict[str, int] = {}
        for (who, _), cost in self.costs.items():
            times[who] = times.get(who, 0) + cost.time
        return {who: time / self.time for who, time in times.items()} if self.time else {}

    @property
    def bare(self) -> Cost:
        """What is neither callbacks nor waiting for data: the step and the loop."""
        time = self.time - self.fetching - sum(cost.time for cost in self.costs.values())
        waits = self.waits - sum(cost.waits for cost in self.costs.values())
        return Cost(self.batches, time, waits)


class Costs:
    """All that a ledger measured in one run: ``stages`` by name, and ``outside`` the batches, where every call counts.

    ``rows()`` gives it as plain dicts, with times in seconds; as text it is a table.
    """

    def __init__(self) -> None:
        self.stages: dict[str, StageCosts] = {}
        self.outside: dict[tuple[str, str], Cost] = {}
        self.seen: dict[str, int] = {}
        self.waits_count = False
        self._slices: deque[tuple[str, str, int, int]] = deque(maxlen=_KEPT)

    def add_batch(self, stage: str, batch: MeasuredBatch, now: int, waits: int) -> None:
        """``batch`` ends ``now``, when there were so many ``waits``."""
        begin, took = batch.begin, now - batch.begin
        self.stages.setdefault(stage, StageCosts()).add(batch, took, waits - batch.waits_before)
        self._slices.append((_LOOP, f"{stage} batch", begin, took))
        self._slices.append((_LOOP, "waiting for data", *batch.fetch))
        self._slices.extend((one.who, one.point, one.begin, one.took) for one in batch.slices)

    def add_outside(self, one: Slice) -> None:
        self.outside.setdefault((one.who, one.point), Cost()).add(one)
        self._slices.append((one.who, one.point, one.begin, one.took))

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for stage, book in self.stages.items():
            bare, fetching = book.bare, Cost(book.batches, book.fetching)
            entries = {("the step and the loop", ""): bare, ("waiting for data", ""): fetching, **book.costs}
            found += [_row(stage, *key, cost, book.batches, book.time) for key, cost in entries.items()]
        found += [_row(None, *key, cost, None, None) for key, cost in self.outside.items()]
        return found

    # As text --------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        parts = [self._stage_text(stage, book) for stage, book in self.stages.items()]
        if self.outside:
            parts.append(self._outside_text())
        return "\n\n".join(parts) or "no batch was measured, and nobody played outside of batches"

    def _stage_text(self, stage: str, book: StageCosts) -> str:
        rows = [row for row in self.rows() if row["stage"] == stage]
        rows[2:] = sorted(rows[2:], key=lambda row: -row["seconds"])
        head = [f"{stage} batches", "", "calls", "us a call", "us a batch", "share", "waits a batch"]
        lines = [
            [
                row["callback"],
                row["point"],
                str(row["calls"]) if row["point"] else "",
                f"{row['seconds'] / row['calls'] * 1e6:,.1f}" if row["point"] and row["calls"] else "",
                f"{row['seconds'] / book.batches * 1e6:,.1f}",
                f"{row['share']:.1%}",
                f"{row['waits'] / book.batches:.2f}",
            ]
            for row in rows
        ]
        width = len(head) if self.waits_count else len(head) - 1
        table = text_table(head[:width], [line[:width] for line in lines], left=2)
        whole = f"{book.time / book.batches / 1e3:,.1f} us a batch"
        seen = f" of {self.seen[stage]:,}" if stage in self.seen else ""
        return f"{table}\n{whole}, measured in {book.batches:,}{seen} {stage} batches"

    def _outside_text(self) -> str:
        ordered = sorted(self.outside.items(), key=lambda item: -item[1].time)
        lines = [
            [
                who,
                point,
                str(cost.calls),
                f"{cost.time / cost.calls / 1e6:,.3f}" if cost.calls else "",
                f"{cost.time / 1e9:,.3f}",
                str(cost.waits),
            ]
            for (who, point), cost in ordered
        ]
        head = ["outside of batches", "", "calls", "ms a call", "seconds", "waits"]
        width = len(head) if self.waits_count else len(head) - 1
        kept = max(_LISTED, sum(cost.time >= _LITTLE for _, cost in ordered))
        table = text_table(head[:width], [line[:width] for line in lines[:kept]], left=2)
        rest = [cost.time for _, cost in ordered[kept:]]
        return f"{table}\n{len(rest)} more, {sum(rest) / 1e9:,.3f} seconds in all" if rest else table

    # As a trace -----------------------------------------------------------------------------------------------------

    def trace(self, process: int = 0) -> bytes:
        """The last slices in the form that chrome://tracing and ui.perfetto.dev open, beside the rows, which they pass
        over; ``process`` is the rank."""
        base = min((begin for _, _, begin, _ in self._slices), default=0)
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": process, "args": {"name": f"cadenza, rank {process}"}}
        ]
        events += [
            {
                "ph": "X",
                "cat": who,
                "name": point if who == _LOOP else f"{who} at {point}",
                "ts": (begin - base) / 1e3,
                "dur": took / 1e3,
                "pid": process,
                "tid": 0,
            }
            for who, point, begin, took in sorted(self._slices, key=lambda one: (one[2], -one[3]))
        ]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "rows": self.rows()}).encode()


def _row(stage: str | None, who: str, point: str, cost: Cost, batches: int | None, whole: int | None) -> dict[str, Any]:
    return {
        "stage": stage,
        "callback": who,
        "point": point,
        "calls": cost.calls,
        "seconds": cost.time / 1e9,
        "waits": cost.waits,
        "batches": batches,
        "share": cost.time / whole if whole else None,
    }
