"""Who costs how much."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TextIO

from cadenza.callback import Callback, Order
from cadenza.callbacks.faults import Faults, tolerant
from cadenza.callbacks.folders import place_for
from cadenza.callbacks.profiling.count_host_waits import HostWaits
from cadenza.callbacks.profiling.instrumented_plan import TimedPlayers
from cadenza.callbacks.profiling.ledger_book import Costs, MeasuredBatch, Meter
from cadenza.engine.boundaries import exchange
from cadenza.foundation.arguments import check, is_number, is_whole
from cadenza.foundation.arguments import path as path_or_none
from cadenza.foundation.arguments import stream as stream_or_none
from cadenza.foundation.text_table import tell
from cadenza.foundation.warn import warn
from cadenza.foundation.whole_files import write_whole

if TYPE_CHECKING:
    from cadenza.run import Run

_ENOUGH = 10
"""So many batches are measured before a callback is said to be too expensive."""


class CostLedger(Faults, Callback):
    """Measures what each callback costs at each point, in time and on a CUDA device in host waits, and what is left for
    the step itself; prints a table at the end of a fit.

    One batch of each ``every`` is played with a plan whose players are timed; all others are played as without the
    ledger, so that it costs less than 1 % of a run. The batch is drawn anew for each stretch of ``every``, so that what
    happens every hundredth step is neither always nor never seen. Points outside of batches (epochs, the run, saves)
    are rare, and every call of them is timed.

        train batches                       calls  us a call  us a batch  share  waits a batch
        --------------------------------------------------------------------------------------
        the step and the loop                                    1,294.5  71.8%           0.00
        waiting for data                                            20.6   1.1%           0.00
        GradientClip           before_step     25      400.4       400.4  22.2%           0.00
        Printer                after_loss      25       88.0        88.0   4.9%           1.00
        1,803.5 us a batch, measured in 25 of 2,500 train batches

        outside of batches               calls  ms a call  seconds  waits
        -----------------------------------------------------------------
        Printer             after_epoch      5      0.194    0.001      5

    Time is that of the host: work that a callback only queues on a GPU is done later, at a time that is nobody's; where
    the host has to wait for it, that is the time and a wait of whoever waits. ``budget`` is the share of a training
    batch above which a callback is warned of, once; None for never. The trace, for chrome://tracing and
    ui.perfetto.dev, is written to ``path``, else to ``costs.json`` in the folder of the run's experiment; without
    either there is none. With ``on_error="warn"`` a file that cannot be written does not end the run. ``stream`` is
    where the table goes (standard output). The figures are in ``run.store["costs"]`` and in ``costs`` of the callback;
    their ``rows()`` are plain dicts.

    >>> import cadenza, io, torch
    >>> from cadenza.callbacks import GradientClip
    >>> from cadenza.testing import tiny_classifier, tiny_loader
    >>> model, ledger = tiny_classifier(), CostLedger(every=2, budget=None, stream=io.StringIO())
    >>> sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
    >>> trainer = cadenza.Trainer(model, sgd, loss, callbacks=[GradientClip(1.0), ledger], device="cpu")
    >>> _ = trainer.fit(tiny_loader(48), epochs=2)
    >>> [(row["callback"], row["point"], row["calls"]) for row in ledger.costs.rows() if row["stage"] == "train"]
    [('the step and the loop', '', 6), ('waiting for data', '', 6), ('GradientClip', 'before_step', 6)]
    """

    order = Order.SAVE + 1_000_000  # after all others, so that its end of an iteration is the end
    owns = frozenset({"plan"})
    ranks = "main"
    passive = True

    def __init__(
        self,
        every: int = 100,
        *,
        budget: float | None = 0.1,
        path: str | os.PathLike[str] | None = None,
        stream: TextIO | None = None,
        on_error: str = "raise",
    ) -> None:
        check(is_whole(every, 1), "every is a whole number of batches of at least 1", every)
        if budget is not None and (not is_number(budget) or not 0 < budget <= 1):
            raise ValueError(f"budget is a share above 0 and up to 1, or None, not {budget!r}")
        stream_or_none("stream", stream)
        self._check_on_error(on_error)
        self.every, self.budget, self.stream = every, budget, stream
        self.path = path_or_none(f"{self.name}: path", path)
        self.costs = Costs()
        self._reset()

    def _reset(self) -> None:
        self._draw = random.Random(0)  # of its own, so that no random number of the training is used up
        self._place = self._draw.randrange(self.every)
        self._left = max(self._place, 1)
        self._wanted = False
        self._waits = HostWaits()
        self._meter = Meter(self._waits)
        self._players: TimedPlayers | None = None
        self._batch = MeasuredBatch()
        self._first_batch = 0
        self._blamed: set[str] = set()

    def explain(self) -> str:
        limit = "" if self.budget is None else f", warns above {self.budget:.0%}"
        return f"measures 1 batch of {self.every}{limit}"

    # Points ---------------------------------------------------------------------------------------------------------

    def plays(self) -> dict[str, Callable[[Run], Any]]:
        """In the plan that measures it looks at the fetch too; in the plain one it only counts batches."""
        played = super().plays()
        if self._players is not None and self._players.making:
            played.update(dict.fromkeys(self._players.more.keys() - played.keys(), lambda run: None))
        return played

    def after_register(self, run: Run) -> None:
        self._reset()
        if run.mode == "fit":
            self.costs = run.store["costs"] = Costs()
            self._first_batch = run.clock.batches
            more = {
                "before_fetch": self._begin_fetch,
                "after_fetch": self._end_fetch,
                "after_iter": self._end_iteration,
            }
            self._players = TimedPlayers(self, more, self._meter, self._batch.slices, self.costs)
            exchange(run, self._players.plans(run)[0])

    def around_run(self, run: Run) -> Iterator[None]:
        with self._waits.listening(run.device) if self._players is not None else nullcontext():
            self.costs.waits_count = self._waits.counts or self.costs.waits_count
            yield

    def after_iter(self, run: Run) -> None:
        self._left -= 1
        if self._left <= 0 and self._players is not None and not run.is_nested:
            self._wanted = True
            run.between_iterations(self._begin)

    @tolerant
    def after_run(self, run: Run) -> None:
        if self._players is None:
            return
        self.costs.seen["train"] = run.clock.batches - self._first_batch
        tell(self.name, f"{self.name}\n{self.costs}", self.stream)
        if self.path is not None or run.experiment is not None:
            write_whole(place_for(run, self.path, "costs.json"), self.costs.trace(run.rank))

    after_error = after_run

    def close(self) -> None:
        self._players = None  # its plans hold the callbacks of the run

    # A batch that is measured ---------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        """Between two iterations: the next batch is measured; in the stretch after this one another is drawn."""
        if self._players is not None and self._players.belongs_to(run):
            last, self._place = self._place, self._draw.randrange(self.every)
            self._left, self._wanted = self.every - last + self._place, False
            exchange(run, self._players.plans(run)[1])
            self._waits.begin()
            self._batch.start()

    def _begin_fetch(self, run: Run) -> None:
        if not run.is_nested:
            self._batch.begin_fetch(perf_counter_ns(), self._waits.count)

    def _end_fetch(self, run: Run) -> None:
        if run.is_nested:
            return
        if hasattr(run, "batch"):
            self._batch.end_fetch(perf_counter_ns())
        else:  # the end of the loader: the first batch of another pass will do
            self._batch.start()

    def _end_iteration(self, run: Run) -> None:
        """After ``after_iter`` in the plan that measures."""
        if run.is_nested:
            self._batch.disturbed = True  # a whole validation lies inside this batch
        else:
            run.between_iterations(self._end)

    def _end(self, run: Run) -> None:
        """Between two iterations: writes the batch down, and lets the plain players play again."""
        now, waits, players = perf_counter_ns(), self._waits.count, self._players
        if players is None:
            return
        changed = not players.plays(run)  # callbacks came or went in this iteration
        if self._batch.disturbed and not changed:
            self._batch.start()  # the next one is measured in its place
            self._wanted = False
            return
        if not changed:
            self.costs.add_batch(str(run.stage), self._batch, now, waits)
            self._warn_of_cost()
        self._waits.end()
        if self._wanted or changed:
            self._begin(run)
        else:
            exchange(run, players.plans(run)[0])

    def _warn_of_cost(self) -> None:
        book = self.costs.stages.get("train")
        if self.budget is None or book is None or book.batches < _ENOUGH:
            return
        for who, share in book.shares().items():
            if share > self.budget and who not in self._blamed:
                self._blamed.add(who)
                where = max((key for key in book.costs if key[0] == who), key=lambda key: book.costs[key].time)[1]
                warn(
                    f"{who} takes {share:.0%} of the time of a training batch, most of it at {where} (measured in "
                    f"{book.batches} batches; {self.name} allows {self.budget:.0%})"
                )
