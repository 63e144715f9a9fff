"""``When`` opens a callback for a window of the clock: for whole spans, decided at before_epoch and before_iter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Callback, Duration, MainCallback, Run, Trainer, When
from cadenza.points import POINTS
from cadenza.testing import Recorder, tiny_classifier, tiny_loader


def made(*callbacks: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


class Seen(Callback):
    """Writes down the epochs and the iterations in which it plays; an iteration by its number over all epochs."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.iterations: list[int] = []
        self.begun: list[int] = []

    def after_epoch(self, run: Run) -> None:
        self.epochs.append(run.epoch)

    def before_train_iter(self, run: Run) -> None:
        self.begun.append(run.clock.batches)

    def after_train_iter(self, run: Run) -> None:
        self.iterations.append(run.clock.batches - 1)


def played(epochs: int = 3, **window: Any) -> Seen:
    """What was played in so many epochs of four batches with six samples each."""
    seen = Seen()
    made(When(seen, **window)).fit(tiny_loader(24, 6), epochs=epochs)
    assert seen.begun == seen.iterations, "whole spans, never half of one"
    return seen


# Every ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["steps", "batches"])
def test_every_so_many(unit: str) -> None:
    assert played(every=f"5 {unit}").iterations == [4, 9]
    assert played(every=f"1 {unit}").iterations == list(range(12))


def test_every_so_many_epochs() -> None:
    seen = played(epochs=5, every="2 epochs")
    assert seen.epochs == [1, 3]
    assert seen.iterations == [4, 5, 6, 7, 12, 13, 14, 15]


def test_every_so_many_samples() -> None:
    """Samples come in batches, so the window opens for the iteration after a multiple was passed."""
    assert played(epochs=2, every="12 samples").iterations == [2, 4, 6]


def test_every_so_many_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    seen = Seen()
    trainer = made(When(seen, every="1 minute"))
    trainer.on("after_iter")(lambda run: now.__setitem__(0, now[0] + 25))
    trainer.fit(tiny_loader(24, 6), epochs=3)
    assert seen.iterations == [3, 5, 8, 10]


def test_every_so_many_tokens() -> None:
    model = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(6, 3))
    batch = (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    seen = Seen()
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(),
        callbacks=[When(seen, every="18 tokens")],
        device="cpu",
    )
    trainer.fit([batch] * 8, epochs=1)
    assert seen.iterations == [3, 6]


# Start and stop ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*its window never opened:UserWarning")
@pytest.mark.parametrize(
    ("start", "first"),
    [("5 steps", 5), ("5 batches", 5), ("30 samples", 5), ("1 epoch", 4), ("0 steps", 0), ("100 steps", 12)],
)
def test_from_when_on(start: str, first: int) -> None:
    assert played(start=start).iterations == list(range(first, 12))


@pytest.mark.parametrize(
    ("stop", "end"),
    [("5 steps", 5), ("5 batches", 5), ("30 samples", 5), ("2 epochs", 8), ("0 steps", 0), ("1 hour", 12)],
)
def test_a_window_closes_at_stop(stop: str, end: int) -> None:
    assert played(stop=stop).iterations == list(range(end))


def test_the_window_opens_in_the_middle_of_the_only_epoch() -> None:
    assert played(epochs=1, start="2 steps").iterations == [2, 3]


def test_epochs_are_decided_when_they_begin() -> None:
    assert played(start="1 epoch", stop="2 epochs").epochs == [1]
    assert played(start="5 steps").epochs == [2]
    assert played(stop="5 steps").epochs == [0, 1]


def test_all_three_together() -> None:
    assert played(every="2 steps", start="4 steps", stop="9 steps").iterations == [5, 7]
    assert played(epochs=6, every="2 epochs", start="2 epochs", stop="5 epochs").epochs == [3]


def test_the_window_goes_on_over_fits() -> None:
    seen = Seen()
    trainer = made(When(seen, every="3 steps"))
    trainer.fit(tiny_loader(24, 6), epochs=1)
    trainer.fit(tiny_loader(24, 6), epochs=1)
    assert seen.iterations == [2, 5]


# Whole spans ---------------------------------------------------------------------------------------------------------


def test_validation_in_between_does_not_cut_an_iteration() -> None:
    seen = Seen()
    made(When(seen, every="2 steps")).fit(tiny_loader(24, 6), tiny_loader(8), epochs=2, validate_every="1 step")
    assert seen.begun == [1, 3, 5, 7]
    assert seen.iterations == [1, 3, 5, 7]


def test_every_point_of_a_span_or_none() -> None:
    recorder = Recorder(arounds=True)
    made(When(recorder, every="3 steps")).fit(tiny_loader(24, 6), epochs=1)
    spans = ("fetch", "iter", "train_iter", "forward", "loss", "backward", "step", "zero_grad")
    for span in spans:
        places = [f"before_{span}", f"enter_{span}", f"exit_{span}", f"after_{span}"]
        assert [recorder.trace.count(place) for place in places] == [1, 1, 1, 1], span


@pytest.mark.filterwarnings("ignore:.*its window never opened:UserWarning")
def test_the_run_itself_always_passes() -> None:
    recorder = Recorder(arounds=True)
    made(When(recorder, start="100 epochs")).fit(tiny_loader(), tiny_loader(), epochs=1)
    assert recorder.trace == [
        "after_register",
        "after_launch",
        "before_run",
        "enter_run",
        "after_log",
        "exit_run",
        "after_run",
    ]


def test_errors_and_close_always_pass() -> None:
    class Closing(Recorder):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    closing = Closing()
    trainer = made(When(closing, start="100 epochs"))
    trainer.on("after_train_iter")(lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(tiny_loader(), epochs=1)
    assert "after_error" in closing.trace
    assert closing.closed == 1


def test_other_runs_have_no_epochs_to_wait_for() -> None:
    recorder = Recorder(points=["after_val_epoch", "after_val_iter"])
    trainer = made(When(recorder, start="1 epoch"))
    trainer.validate(tiny_loader(8))
    assert recorder.trace == []
    trainer.fit(tiny_loader(), epochs=1)
    trainer.validate(tiny_loader(8))
    assert recorder.trace == ["after_val_iter", "after_val_epoch"]


# What a window is made of ---------------------------------------------------------------------------------------------


def test_declarations_and_state_are_those_of_the_callback() -> None:
    class Declared(Callback):
        order = 7
        stages = {"train"}
        owns = {"lr"}
        ranks = "main"
        asks = {"skip_batch"}
        agree = "same"
        capturable = True
        monitor = "val/loss"

        def __init__(self) -> None:
            self.state: dict[str, Any] = {"n": 1}

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

        def explain(self) -> str:
            return "says so"

    inner = Declared()
    when = When(inner, every="2 steps")
    for name in ("order", "stages", "owns", "ranks", "asks", "agree", "capturable", "monitor"):
        assert getattr(when, name) == getattr(inner, name)
    assert when.state_dict() == {"n": 1}
    when.load_state_dict({"n": 2})
    assert inner.state == {"n": 2}
    assert "says so" in made(when).explain()


def test_a_saver_in_a_window_still_saves() -> None:
    class Saver(Callback):
        owns = {"save"}

        def __init__(self) -> None:
            self.saved: list[int] = []

        def save(self, run: Run) -> None:
            self.saved.append(run.clock.steps)

    saver = Saver()
    trainer = made(When(saver, every="1 epoch"))
    trainer.on("after_epoch")(lambda run: run.save())
    trainer.fit(tiny_loader(), epochs=2)
    assert saver.saved == [3, 6]


def test_a_window_needs_an_edge_and_a_callback() -> None:
    with pytest.raises(ValueError, match="at least one of every, start and stop"):
        When(Recorder())
    with pytest.raises(TypeError, match="MainCallback owns what happens in every iteration"):
        When(MainCallback(), every="2 steps")
    with pytest.raises(TypeError, match=r"limits a cadenza\.Callback, and str is none"):
        When("Recorder", every="2 steps")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"limits a cadenza\.Callback, and type is none"):
        When(Recorder, every="2 steps")  # type: ignore[arg-type]
    for bad in ("0 steps", "often", "2 moons"):
        with pytest.raises(ValueError, match=r"steps|duration|unit"):
            When(Recorder(), every=bad)


def test_names_say_what_they_limit() -> None:
    when = When(Recorder(), every=Duration(100, "steps"), start="2 epochs", stop="1 hour")
    assert when.name == "When(Recorder, every 100 steps, from 2 epochs, until 3600 seconds)"
    assert when.name in made(when).explain()


def test_only_points_of_the_callback_open_the_step() -> None:
    inside = {
        name for name in When(Seen(), every="2 steps").plays() if POINTS[name].span in ("forward", "loss", "step")
    }
    assert inside == set()


@pytest.mark.parametrize("start", ["5 epochs", "20 steps", "1 token"])
def test_a_window_that_never_opened_is_told(start: str) -> None:
    with pytest.warns(UserWarning, match=rf"When\(Seen, from {start}\): its window never opened, .* ended at") as told:
        seen = played(start=start)
    assert [one.filename for one in told] == [__file__]
    assert seen.iterations == []


def test_a_window_that_a_stop_left_closed_is_not() -> None:
    trainer = made(When(Seen(), start="5 epochs"))
    trainer.on("after_epoch")(lambda run: run.stop("enough"))
    trainer.fit(tiny_loader(), epochs=9)
