"""TimeLimit: at which batch a fit ends, on a clock that is moved by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from cadenza import Callback, Duration, Trainer, When
from cadenza.callbacks.checkpoint import Checkpoint
from cadenza.callbacks.guards.time_limit import TimeLimit
from cadenza.testing import tiny_classifier, tiny_loader


class Time:
    """A clock that stands still until somebody moves it."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    clock = Time()
    monkeypatch.setattr("cadenza.callbacks.guards.time_limit.monotonic", clock)
    return clock


class Slow:
    """Batches that take ``seconds`` each to arrive."""

    def __init__(self, time, count=4, seconds=60.0):
        self.time, self.batches, self.seconds = time, list(tiny_loader(count * 4, 4)), seconds

    def __iter__(self):
        for batch in self.batches:
            self.time.now += self.seconds
            yield batch

    def __len__(self):
        return len(self.batches)


class Reason(Callback):
    said = None

    def after_run(self, run):
        self.said = run.stop_reason


def make_trainer(*callbacks):
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")


@pytest.mark.parametrize(
    ("limit", "grace", "batches"),
    [("10 minutes", "0 s", 10), ("9.5 minutes", "0 s", 10), ("10 minutes", "3 minutes", 7), ("1 hour", "0 s", 16)],
)
def test_it_stops_after_the_first_batch_that_ends_too_late(time, limit, grace, batches):
    trainer = make_trainer(TimeLimit(limit, grace=grace), reason := Reason())
    trainer.fit(Slow(time), epochs=4)
    assert trainer.clock.batches == batches
    assert (reason.said is None) == (batches == 16)
    if grace != "0 s":
        assert (
            reason.said
            == "paused: TimeLimit: 420.0 seconds have passed; the limit is 600 seconds, less 180 seconds of grace"
        )


def test_a_stop_during_validation_ends_it_there(time):
    trainer = make_trainer(TimeLimit("5 minutes"))
    history = trainer.fit(Slow(time), Slow(time), epochs=2)
    assert (trainer.clock.batches, trainer.clock.epochs, time.now) == (4, 1, 1300.0)
    assert "val/loss" not in history


def test_a_second_fit_has_the_whole_time_again(time):
    trainer = make_trainer(TimeLimit("2 minutes"))
    trainer.fit(Slow(time), epochs=1)
    time.now += 10_000
    trainer.fit(Slow(time), epochs=1)
    assert trainer.clock.batches == 4


def test_of_the_clock_means_the_time_of_all_fits():
    """The clock of an earlier fit is taken over, as a checkpoint does it."""
    trainer = make_trainer(TimeLimit("2 hours", of="clock"), reason := Reason())
    trainer.clock.load_state_dict({**trainer.clock.state_dict(), "seconds": 7200.0})
    trainer.fit(tiny_loader(), epochs=1)
    assert trainer.clock.batches == 1
    assert "7200" in reason.said
    fresh = make_trainer(TimeLimit("2 hours", of="clock"))
    fresh.fit(tiny_loader(), epochs=1)
    assert fresh.clock.epochs == 1


def test_other_modes_have_no_limit():
    assert "val/loss" in make_trainer(TimeLimit("0 s")).validate(tiny_loader())


def test_a_held_step_is_dropped_like_at_any_stop(time):
    """Under accumulation the run ends at that batch too."""

    class Hold(Callback):
        asks = {"hold_step"}

        def before_train_iter(self, run):
            if run.batch_idx % 2 == 0:
                run.hold_step()

    trainer = make_trainer(TimeLimit("3 minutes"), Hold())
    trainer.fit(Slow(time), epochs=4)
    assert (trainer.clock.batches, trainer.clock.steps) == (3, 1)


def test_under_when_it_looks_only_in_its_window(time):
    trainer = make_trainer(When(TimeLimit("1 minute"), start="6 batches"))
    trainer.fit(Slow(time), epochs=4)
    assert trainer.clock.batches == 7


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"limit": "100 steps"}, "fit\\(epochs=, steps=\\)"),
        ({"limit": "soon"}, "not a duration"),
        ({"limit": "1 hour", "grace": "60 minutes"}, "less than the limit"),
        ({"limit": "1 hour", "grace": "1 epoch"}, "grace is a time"),
        ({"limit": "1 hour", "of": "day"}, '"fit" or "clock"'),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        TimeLimit(**arguments)


def test_explain_says_what_is_left_after_grace():
    assert "stops this fit after 6900 seconds" in make_trainer(TimeLimit.example()).explain()
    assert TimeLimit(Duration(90, "seconds")).limit.amount == 90


def test_a_run_whose_time_was_up_goes_on_where_it_stood(tmp_path: Path) -> None:
    def made(limit: str) -> Trainer:
        torch.manual_seed(0)
        model = tiny_classifier()
        adam = torch.optim.Adam(model.parameters())
        callbacks = [Checkpoint(None, to=tmp_path / limit[0]), TimeLimit(limit)]
        return Trainer(model, adam, torch.nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", seed=1)

    made("0 seconds").fit(tiny_loader(), epochs=3, resume="auto")
    again = made("0 seconds")
    again.fit(tiny_loader(), epochs=3, resume="auto")
    assert again.clock.batches == 2
    while again.clock.epochs < 3:
        again = made("0 seconds")
        again.fit(tiny_loader(), epochs=3, resume="auto")
    whole = made("1 hour")
    whole.fit(tiny_loader(), epochs=3)
    assert again.clock.batches == whole.clock.batches
    assert all(map(torch.equal, again.model.state_dict().values(), whole.model.state_dict().values()))
