"""Throughput: rates against a clock that is moved by hand, without the time of what is no training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer, When
from cadenza.callbacks.profiling.throughput import Stretch, Throughput
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.clock import Clock
from cadenza.points import POINTS, SPAN
from cadenza.testing import tiny_classifier


class Time:
    """A clock that stands still until somebody moves it."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    clock = Time()
    monkeypatch.setattr("cadenza.callbacks.profiling.throughput.perf_counter", clock)
    return clock


class Slow:
    """Batches of so many samples; each takes ``seconds`` to arrive."""

    def __init__(self, time, sizes, seconds, *, tokens=0):
        self.time, self.sizes, self.seconds, self.tokens = time, sizes, seconds, tokens

    def __iter__(self):
        for size in self.sizes:
            self.time.now += self.seconds
            inputs = torch.zeros(size, self.tokens, dtype=torch.long) if self.tokens else torch.zeros(size, 4)
            yield inputs, torch.zeros(size, dtype=torch.long)

    def __len__(self):
        return len(self.sizes)


def made(*callbacks, model=None):
    model = tiny_classifier() if model is None else model
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


class At(Callback):
    def __init__(self, point, act):
        self.point, self.act = point, act

    def plays(self):
        return {self.point: self.act}


RATES = ("samples", "batches", "steps")


def rates(row):
    return tuple(row[f"train/{unit}_per_second"] for unit in RATES)


def test_rates_of_an_epoch_by_hand(time):
    history = made(Throughput()).fit(Slow(time, [8, 8, 4], 2.0), epochs=2)
    for row in history.epochs:
        assert rates(row) == (20 / 6, 0.5, 0.5)
        assert row["train/seconds"] == 6.0
        assert "train/tokens_per_second" not in row


def test_tokens_a_second(time):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(2, 3)

        def forward(self, words):
            return self.table(words).mean(1)

    history = made(Throughput(), model=Words()).fit(Slow(time, [2, 3], 0.5, tokens=7), epochs=1)
    assert history["train/tokens_per_second"] == [35.0]
    assert history["train/samples_per_second"] == [5.0]


def test_rates_of_stretches_by_hand(time):
    class Slower(Slow):
        def __iter__(self):
            for index, batch in enumerate(super().__iter__()):
                self.seconds = 1.0 if index < 1 else 3.0
                yield batch

    history = made(Throughput(every="2 steps")).fit(Slower(time, [8, 8, 4, 4, 8], 1.0), epochs=1)
    inside = [row for row in history.iters if "train/samples_per_second" in row]
    assert [row["step"] for row in inside] == [2, 4]
    assert [rates(row) for row in inside] == [(8.0, 1.0, 1.0), (8 / 6, 2 / 6, 2 / 6)]
    assert rates(history.epochs[0]) == (32 / 11, 5 / 11, 5 / 11)


def test_the_time_of_validation_and_tests_is_left_out(time):
    trainer = made(Throughput(every="2 steps"))
    trainer.fit(
        Slow(time, [8] * 4, 2.0),
        {"a": Slow(time, [4, 4], 100.0), "b": Slow(time, [1], 7.0)},
        epochs=2,
        validate_every="1 step",
        test_loaders=Slow(time, [4], 50.0),
    )
    rows = [*trainer.history.epochs, *(row for row in trainer.history.iters if "train/samples_per_second" in row)]
    assert len(rows) == 6
    assert {rates(row) for row in rows} == {(4.0, 0.5, 0.5)}
    assert trainer.history["train/seconds"] == [8.0, 8.0]


def test_a_stretch_begins_anew_in_each_epoch_and_each_fit(time):
    trainer = made(Throughput(every="2 batches"))
    for _ in range(2):
        trainer.fit(Slow(time, [8] * 3, 2.0), Slow(time, [4], 100.0), epochs=1)
    inside = [(row["batch"], rates(row)) for row in trainer.history.iters]
    assert inside == [(2, (4.0, 0.5, 0.5)), (4, (4.0, 0.5, 0.5)), (6, (4.0, 0.5, 0.5))]


def test_held_and_skipped_steps_are_no_steps(time):
    history = made(Throughput(), Accumulate(2)).fit(Slow(time, [8] * 4, 2.0), epochs=1)
    assert rates(history.epochs[0]) == (4.0, 0.5, 0.25)
    skip = At("before_train_iter", lambda run: run.skip_batch() if run.batch_idx else None)
    history = made(Throughput(), skip).fit(Slow(time, [8] * 4, 2.0), epochs=1)
    assert rates(history.epochs[0]) == (4.0, 0.5, 0.125)


def test_a_stop_and_an_error(time):
    stop = At("after_train_iter", lambda run: run.stop() if run.batch_idx == 1 else None)
    history = made(Throughput(), stop).fit(Slow(time, [8] * 4, 2.0), epochs=3)
    assert [rates(row) for row in history.epochs] == [(4.0, 0.5, 0.5)]
    once = []
    fail = At("before_val_iter", lambda run: once or (once.append(1), 1 / 0))
    trainer = made(Throughput(), fail)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(Slow(time, [8] * 2, 2.0), Slow(time, [8], 9.0), epochs=1, validate_every="1 step")
    time.now += 1000.0
    trainer.fit(Slow(time, [8] * 2, 2.0), Slow(time, [8], 9.0), epochs=1, validate_every="1 step")
    assert trainer.history["train/samples_per_second"] == [4.0]


def test_within_a_window(time):
    history = made(When(Throughput(), every="2 epochs")).fit(Slow(time, [8], 2.0), epochs=4)
    assert ["train/seconds" in row for row in history.epochs] == [False, True, False, True]


def test_a_clock_that_stands_still_has_no_rate(time):
    history = made(Throughput()).fit(Slow(time, [8], 0.0), epochs=1)
    assert set(history.names()) == {"train/loss", "train/seconds"}


def test_a_stretch_of_ones_own(time):
    clock = Clock()
    stretch = Stretch(clock)
    clock.samples, clock.batches, clock.steps = 12, 3, 2
    time.now += 6.0
    stretch.leave_out(2.0)
    assert stretch.rates(clock, time()) == {"samples": 3.0, "batches": 0.75, "steps": 0.5}


def test_it_plays_outside_the_step():
    actions = {span.name for span in SPAN.values() if span.action}
    assert not {POINTS[name].span for name in Throughput("1 step").plays()} & (actions | {"fetch"})


def test_intervals_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="every epoch is logged anyway"):
        Throughput(every="1 epoch")
    with pytest.raises(ValueError, match="more than 0 steps"):
        Throughput(every="0 steps")


def test_it_behaves_as_a_callback():
    assert Throughput().state_dict() == {}
    assert Throughput("5 steps").explain() == "each epoch and every 5 steps"
