"""What ready callbacks need of the engine is public, so that a callback of the user's own can do the same."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import torch

from cadenza import Callback, Run, Trainer
from cadenza.callbacks import Accumulate
from cadenza.testing import tiny_classifier, tiny_loader


def made(*callbacks: Callback, optimizer: str = "SGD") -> Trainer:
    model = tiny_classifier()
    optimizers = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
    return Trainer(model, optimizers, torch.nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")


class Watcher(Callback):
    """Notes a value at some points."""

    def __init__(self, **at: str) -> None:
        self.at, self.seen = at, {point: [] for point in at}  # type: ignore[var-annotated]

    def plays(self):
        return {point: lambda run, point=point: self._look(run, point) for point in self.at}

    def _look(self, run: Run, point: str) -> None:
        self.seen[point].append(getattr(run, self.at[point]))


def test_the_point_that_ran_last() -> None:
    watcher = Watcher(after_backward="point")
    made(watcher).fit(tiny_loader(8), epochs=1)
    assert [point.name for point in watcher.seen["after_backward"]] == ["after_backward"]


def test_the_stages_that_are_open() -> None:
    watcher = Watcher(before_run="open_stages", after_forward="open_stages")
    made(watcher).fit(tiny_loader(16), tiny_loader(8), epochs=1, validate_every="1 step")
    assert watcher.seen["before_run"] == [()]
    assert watcher.seen["after_forward"] == [("train",), ("train", "val"), ("train",), ("train", "val")]


def test_whether_an_iteration_is_open() -> None:
    watcher = Watcher(before_train_epoch="is_iterating", after_loss="is_iterating", after_train_epoch="is_iterating")
    made(watcher).fit(tiny_loader(8), epochs=1)
    assert [seen for (seen,) in watcher.seen.values()] == [False, True, False]


def test_whether_the_pass_had_all_its_batches() -> None:
    class EndsEarly(Callback):
        def after_train_iter(self, run: Run) -> None:
            if run.epoch == 1:
                run.end_epoch()

    watcher = Watcher(after_train_epoch="is_pass_complete")
    made(EndsEarly(), watcher).fit(tiny_loader(24), epochs=2)
    assert watcher.seen["after_train_epoch"] == [True, False]


def test_a_batch_that_is_computed_again() -> None:
    watcher = Watcher(after_forward="is_recomputing")
    made(watcher, optimizer="LBFGS").fit(tiny_loader(8), epochs=1)
    assert watcher.seen["after_forward"][0] is False
    assert set(watcher.seen["after_forward"][1:]) == {True}


def test_the_thread_and_the_processes_of_a_run() -> None:
    watcher = Watcher(before_run="thread", after_run="processes")
    made(watcher).fit(tiny_loader(8), epochs=1)
    assert watcher.seen["before_run"] == [threading.get_ident()]
    (alone,) = watcher.seen["after_run"]
    assert not alone.many
    assert not alone.empty
    assert alone.places() == {}


def test_a_function_between_two_iterations_is_called_once() -> None:
    class Asks(Callback):
        def __init__(self) -> None:
            self.called: list[tuple[int, bool]] = []

        def after_loss(self, run: Run) -> None:
            if run.batch_idx == 0:
                run.between_iterations(lambda run: self.called.append((run.clock.batches, run.is_iterating)))

    asks = Asks()
    made(asks).fit(tiny_loader(24), epochs=1)
    assert asks.called == [(1, False)]


def test_rows_of_the_epoch() -> None:
    class Logs(Callback):
        def __init__(self) -> None:
            self.rows: list[list[float]] = []

        def after_train_iter(self, run: Run) -> None:
            run.log("number", run.clock.batches)

        def after_train_epoch(self, run: Run) -> None:
            self.rows.append([row["number"] for row in run.rows_of_epoch if "number" in row][:3])

    logs = Logs()
    made(logs).fit(tiny_loader(24), epochs=2)
    assert logs.rows == [[1, 2, 3], [4, 5, 6]]


def test_forwards_beside_the_training_run_in_what_a_callback_sets() -> None:
    class Casts(Callback):
        entered = 0

        def after_register(self, run: Run) -> None:
            run.autocast = self.hold

        @contextmanager
        def hold(self):
            self.entered += 1
            yield

        def after_train_epoch(self, run: Run) -> None:
            run.evaluate(tiny_loader(8))

    casts = Casts()
    made(casts).fit(tiny_loader(8), epochs=1)
    assert casts.entered == 1


def test_gradients_that_are_carried_into_the_next_epoch() -> None:
    class Carries(Callback):
        def before_run(self, run: Run) -> None:
            run.carries_gradients = True

    class Holds(Callback):
        def after_backward(self, run: Run) -> None:
            run.hold_step()

    dropped, kept = made(Holds()), made(Holds(), Carries())
    dropped.fit(tiny_loader(8), epochs=2)
    kept.fit(tiny_loader(8), epochs=2)
    assert (dropped.clock.steps, kept.clock.steps) == (2, 0)


def test_accumulation_needs_nothing_that_is_private() -> None:
    trainer = made(Accumulate(2))
    trainer.fit(tiny_loader(24), epochs=1)
    assert trainer.clock.steps == 2
