"""Durations are read or refused clearly; the clock counts, and its state goes round."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cadenza import Clock, Duration, Trainer
from cadenza.clock import UNITS, Cadence
from cadenza.testing import tiny_classifier, tiny_loader

READ = {
    "100 steps": (100, "steps"),
    "1 step": (1, "steps"),
    "2 epochs": (2, "epochs"),
    "1 batch": (1, "batches"),
    "3 batches": (3, "batches"),
    "5 iters": (5, "batches"),
    "1 iteration": (1, "batches"),
    "10_000 samples": (10_000, "samples"),
    "7 tokens": (7, "tokens"),
    "0 steps": (0, "steps"),
    "  4   EPOCHS ": (4, "epochs"),
    "12steps": (12, "steps"),
    "90 seconds": (90.0, "seconds"),
    "1.5 minutes": (90.0, "seconds"),
    "2 min": (120.0, "seconds"),
    "30 s": (30.0, "seconds"),
    "10 secs": (10.0, "seconds"),
    "0.5 h": (1800.0, "seconds"),
    "1 day": (86400.0, "seconds"),
}


@pytest.mark.parametrize("text", READ)
def test_what_is_read(text: str) -> None:
    duration = Duration.parse(text)
    assert (duration.amount, duration.unit) == READ[text]
    assert Duration.parse(duration) is duration


@pytest.mark.parametrize(
    "text", ["", "steps", "100", "ten steps", "-1 steps", "1e3 steps", "1,5 h", "1 step 2", "nan s", "inf s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write a number and a unit"):
        Duration.parse(text)


@pytest.mark.parametrize("value", [100, 1.5, None, ["1 step"], b"1 step"])
def test_only_texts_are_read(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="is not a duration"):
        Duration.parse(value)


@pytest.mark.parametrize("text", ["3 fortnights", "1 stepss", "2 ms", "1 epoc"])
def test_unknown_units_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"the unit '{text.split()[1]}' is unknown; use batches, steps"):
        Duration.parse(text)


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit != "seconds"])
def test_what_is_counted_is_whole(unit: str) -> None:
    with pytest.raises(ValueError, match=f"{unit} are counted in whole numbers"):
        Duration.parse(f"1.5 {unit}")


def test_an_interval_is_more_than_nothing() -> None:
    assert Duration.interval("3 steps") == Duration(3, "steps")
    for text in ("0 steps", "0 minutes"):
        with pytest.raises(ValueError, match="more than 0"):
            Duration.interval(text)


@pytest.mark.parametrize(
    ("amount", "unit"), [(-1, "steps"), (float("nan"), "seconds"), (float("inf"), "seconds"), (1, "weeks")]
)
def test_durations_made_by_hand_are_checked(amount: float, unit: str) -> None:
    with pytest.raises(ValueError, match="a duration"):
        Duration(amount, unit)


@given(st.integers(0, 10**12), st.sampled_from(UNITS[:-1]))
def test_a_duration_reads_its_own_text(amount: int, unit: str) -> None:
    duration = Duration(amount, unit)
    assert Duration.parse(str(duration)) == duration


def test_texts_are_as_one_says_them() -> None:
    assert [str(Duration.parse(text)) for text in ("1 batch", "2 batches", "1 step", "90 s")] == [
        "1 batch",
        "2 batches",
        "1 step",
        "90 seconds",
    ]


def test_the_clock_starts_at_nothing_and_reaches() -> None:
    clock = Clock()
    assert all(getattr(clock, unit) == 0 for unit in UNITS)
    assert clock.reached(Duration(0, "steps"))
    assert not clock.reached(Duration(1, "steps"))
    clock.steps = 1
    assert clock.reached(Duration(1, "steps"))


def test_seconds_pass_only_between_start_and_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    clock = Clock()
    now[0] += 5
    assert clock.seconds == 0
    clock.start()
    now[0] += 2
    clock.start()  # a second start does not begin anew
    now[0] += 1
    assert clock.seconds == 3
    clock.pause()
    now[0] += 10
    assert clock.seconds == 3
    clock.start()
    now[0] += 4
    assert clock.seconds == 7


def test_no_time_passes_between_two_fits() -> None:
    model = tiny_classifier()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), device="cpu")
    for _ in range(2):
        trainer.fit(tiny_loader(), epochs=1)
        assert trainer.clock.seconds == trainer.clock.seconds > 0


def test_state_goes_round_through_json() -> None:
    clock = Clock()
    clock.batches, clock.steps, clock.samples, clock.tokens, clock.epochs = 9, 8, 7, 6, 5
    state = json.loads(json.dumps(clock.state_dict()))
    other = Clock()
    other.load_state_dict(state)
    assert other.state_dict() == clock.state_dict()
    assert all(type(getattr(other, unit)) is int for unit in UNITS[:-1])


def test_a_running_clock_goes_on_from_what_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    clock = Clock()
    clock.start()
    now[0] += 50
    clock.load_state_dict(dict.fromkeys(UNITS, 10))
    now[0] += 1
    assert clock.seconds == 11


def test_the_state_of_a_clock_does_not_follow_it() -> None:
    clock = Clock()
    state = clock.state_dict()
    clock.steps = 5
    assert state["steps"] == 0


@pytest.mark.parametrize("unit", UNITS[:-1])
def test_a_cadence_is_due_once_for_each_multiple(unit: str) -> None:
    clock = Clock()
    every = Cadence(f"3 {unit}", clock)
    due = []
    for now in (1, 3, 3, 5, 7, 20, 21):  # may jump over several multiples
        setattr(clock, unit, now)
        due.append(every.due())
    assert due == [False, True, False, False, True, True, True]


def test_a_cadence_does_not_ask_for_what_was_before_it() -> None:
    clock = Clock()
    clock.steps = 7
    every = Cadence("3 steps", clock)
    assert not every.due()
    clock.steps = 9
    assert every.due()


def test_the_clock_goes_on_over_fits_and_stands_in_other_runs() -> None:
    model = tiny_classifier()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), device="cpu")
    trainer.fit(tiny_loader(20), epochs=1)
    trainer.fit(tiny_loader(20), steps=2)
    seconds = trainer.clock.seconds
    trainer.validate(tiny_loader(20))
    trainer.predict(tiny_loader(20))
    assert trainer.clock.state_dict() == {
        "batches": 5,
        "steps": 5,
        "samples": 36,
        "tokens": 0,
        "epochs": 1,
        "seconds": seconds,
    }
    assert seconds > 0
