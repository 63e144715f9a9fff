"""Timer: times against a clock that is moved by hand inside each part."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cadenza import Callback, CallbackError, MainCallback, Order, Trainer, When
from cadenza.callbacks.profiling.timer import Timer
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.points import POINTS, SPAN
from cadenza.testing import tiny_classifier, tiny_loader


class Time:
    """A clock that stands still until somebody moves it, by milliseconds."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now / 1000

    def takes(self, milliseconds):
        self.now += milliseconds


@pytest.fixture
def time(monkeypatch):
    clock = Time()
    monkeypatch.setattr("cadenza.callbacks.profiling.timer.perf_counter", clock)
    return clock


class Main(MainCallback):
    """Each behaviour takes a time of its own; the forward of validation ten times that of training."""

    def __init__(self, time):
        super().__init__()
        self.time = time

    def on_iter_forward(self, run):
        self.time.takes(3 if run.stage == "train" else 30)
        super().on_iter_forward(run)

    def on_iter_loss(self, run):
        self.time.takes(2)
        super().on_iter_loss(run)

    def on_iter_backward(self, run):
        self.time.takes(5)
        super().on_iter_backward(run)

    def on_iter_step(self, run):
        self.time.takes(7)
        super().on_iter_step(run)

    def on_iter_zero_grad(self, run):
        self.time.takes(1)
        super().on_iter_zero_grad(run)


class Busy(Callback):
    """Takes its time around everything that is timed."""

    def __init__(self, time, order):
        self.time, self.order = time, order

    def plays(self):
        spans = ("fetch", "forward", "loss", "backward", "step", "zero_grad")
        return {f"{kind}_{span}": self._wait for kind in ("before", "after") for span in spans}

    def _wait(self, run):
        self.time.takes(1000)


class At(Callback):
    def __init__(self, point, act):
        self.point, self.act = point, act

    def plays(self):
        return {self.point: self.act}


class Slow:
    def __init__(self, time, milliseconds, batches=4):
        self.time, self.milliseconds, self.batches = time, milliseconds, batches

    def __iter__(self):
        for batch in list(tiny_loader(4 * self.batches, 4)):
            self.time.takes(self.milliseconds)
            yield batch

    def __len__(self):
        return self.batches


def made(time, *callbacks, model=None):
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[Main(time), *callbacks], device="cpu")


def times(row, stage="train"):
    return {name.removeprefix(f"{stage}/"): value for name, value in row.items() if name.endswith("_ms")}


def test_times_by_hand_without_those_of_other_callbacks(time):
    spans = ("fetch", "forward", "loss", "backward", "step", "zero_grad")
    early, late = Busy(time, Order.PREPARE), Busy(time, Order.SAVE)
    history = made(time, early, Timer(spans=spans), late).fit(Slow(time, 11), epochs=2)
    for row in history.epochs:
        assert times(row) == pytest.approx(
            {
                "fetch_ms": 11 * 4 / 5,  # five fetches: the last finds the end
                "forward_ms": 3,
                "loss_ms": 2,
                "backward_ms": 5,
                "step_ms": 7,
                "zero_grad_ms": 1,
            }
        )


def test_only_what_is_asked_for(time):
    history = made(time, Timer()).fit(Slow(time, 11), epochs=1)
    assert set(times(history.epochs[0])) == {"fetch_ms", "forward_ms", "backward_ms", "step_ms"}


def test_stages_and_loaders_are_kept_apart(time):
    timer = Timer(spans=("fetch", "forward"), stages={"train", "val", "test"})
    loaders = {"a": Slow(time, 20, 3), "b": Slow(time, 40, 1)}
    history = made(time, timer).fit(Slow(time, 11), loaders, epochs=1, test_loaders=Slow(time, 8, 1))
    assert times(history.epochs[0], "") == pytest.approx(
        {
            "train/fetch_ms": 11 * 4 / 5,
            "train/forward_ms": 3,
            "val/a/fetch_ms": 20 * 3 / 4,
            "val/a/forward_ms": 30,
            "val/b/fetch_ms": 20,
            "val/b/forward_ms": 30,
            "test/fetch_ms": 4,
            "test/forward_ms": 30,
        }
    )


def test_a_validation_inside_training_is_left_out(time):
    history = made(time, Timer()).fit(Slow(time, 11), Slow(time, 500), epochs=1, validate_every="1 step")
    assert times(history.epochs[0])["fetch_ms"] == pytest.approx(11 * 4 / 5)
    assert times(history.epochs[0])["forward_ms"] == pytest.approx(3)


def test_stretches_by_hand(time):
    class Growing(Main):
        def on_iter_forward(self, run):
            self.time.takes(run.batch_idx)
            super().on_iter_forward(run)

    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    callbacks = [Growing(time), Timer(every="2 steps", spans=["forward"])]
    trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
    trainer.fit(Slow(time, 1, 5), epochs=2)
    inside = [(row["step"], row["train/forward_ms"]) for row in trainer.history.iters]
    assert [step for step, _ in inside] == [2, 4, 6, 8, 10]
    expected = [3.5, 5.5, 3, 4.5, 6.5]  # the third only has the first batch of the second epoch
    assert [value for _, value in inside] == pytest.approx(expected)
    assert trainer.history["train/forward_ms"] == pytest.approx([5.0, 5.0])


def test_a_mean_is_over_the_times_that_a_part_was_played(time):
    history = made(time, Timer(), Accumulate(2)).fit(Slow(time, 11), epochs=1)
    assert times(history.epochs[0])["step_ms"] == pytest.approx(7)
    skip = At("before_forward", lambda run: run.skip_batch() if run.batch_idx else None)
    history = made(time, Timer(), skip).fit(Slow(time, 11), epochs=1)
    assert times(history.epochs[0]) == pytest.approx(
        {"fetch_ms": 11 * 4 / 5, "forward_ms": 3, "backward_ms": 5, "step_ms": 7}
    )
    skip = At("before_train_iter", lambda run: run.skip_backward())
    history = made(time, Timer(), skip).fit(Slow(time, 11), epochs=1)
    assert set(times(history.epochs[0])) == {"fetch_ms", "forward_ms"}


def test_a_stop_an_error_and_a_further_fit(time):
    stop = At("after_train_iter", lambda run: run.stop())
    history = made(time, Timer(), stop).fit(Slow(time, 11), epochs=2)
    assert [times(row) for row in history.epochs] == [
        pytest.approx({"fetch_ms": 11, "forward_ms": 3, "backward_ms": 5, "step_ms": 7})
    ]
    fail = At("after_loss", lambda run: 1 / 0 if run.clock.batches == 2 else None)
    trainer = made(time, Timer(), fail)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(Slow(time, 500), epochs=1)
    trainer.remove(fail)
    assert times(trainer.fit(Slow(time, 11), epochs=1).epochs[-1])["fetch_ms"] == pytest.approx(11 * 4 / 5)


def test_a_behaviour_that_steps_by_itself_is_not_in_its_way(time):
    class Own(Main):
        def on_iter_backward(self, run):
            run.optimizer.zero_grad()
            run.loss.backward()
            run.optimizer.step()
            self.time.takes(9)

    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[Own(time), Timer()], device="cpu")
    found = times(trainer.fit(Slow(time, 11), epochs=1).epochs[0])
    assert (found["backward_ms"], "step_ms" in found) == (pytest.approx(9), False)


def test_an_optimizer_that_plays_the_batch_again():
    model = tiny_classifier()
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    trainer = Trainer(model, lbfgs, nn.CrossEntropyLoss(), callbacks=[Timer()], device="cpu")
    assert all(value > 0 for value in times(trainer.fit(tiny_loader(), epochs=1).epochs[0]).values())


def test_within_a_window(time):
    history = made(time, When(Timer(), every="2 epochs")).fit(Slow(time, 11), epochs=4)
    assert ["train/step_ms" in row for row in history.epochs] == [False, True, False, True]


def test_the_fetch_alone_leaves_the_step_closed():
    actions = {span.name for span in SPAN.values() if span.action}
    assert not {POINTS[name].span for name in Timer(spans=["fetch"]).plays()} & actions
    assert {POINTS[name].span for name in Timer().plays()} & actions == {"forward", "backward", "step"}


def test_timing_does_not_change_a_bit():
    states = []
    for more in ([], [Timer(every="1 step", spans=("fetch", "forward", "loss", "backward", "step", "zero_grad"))]):
        model = tiny_classifier()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=more, device="cpu").fit(tiny_loader(), epochs=3)
        states.append(model.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(*(s.values() for s in states), strict=True))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"every": "1 epoch"}, "every epoch is logged anyway"),
        ({"spans": ["forwards"]}, "spans is some of fetch, forward"),
        ({"spans": []}, "spans is some of"),
        ({"stages": {"pred"}}, "stages is some of"),
        ({"every": "1 step", "stages": {"val"}}, "every is for stretches of training"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(more, said):
    with pytest.raises(ValueError, match=said):
        Timer(**more)


def test_a_subclass_that_plays_around_what_is_timed_is_refused():
    class Also(Timer):
        def around_forward(self, run):
            return None

    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CallbackError, match=r"Also\.around_forward would not be played"):
        Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[Also()], device="cpu")
    Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[Also(spans=["fetch"])], device="cpu")


def test_it_behaves_as_a_callback():
    assert Timer().state_dict() == {}
    assert "looks into the step for forward, backward, step" in Timer().explain()
    assert "looks into" not in Timer(spans="fetch").explain()


def test_parts_of_training_are_not_timed_where_training_is_not_asked_for():
    timer = Timer(stages={"val"})
    model = tiny_classifier()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), callbacks=[timer])
    history = trainer.fit(tiny_loader(), tiny_loader(), epochs=1)
    assert [name for name in history.names() if name.endswith("_ms")] == ["val/fetch_ms", "val/forward_ms"]
    assert not {"around_backward", "around_step"} & timer.plays().keys()
    assert timer.explain() == "times fetch, forward in val; looks into the step for forward"


def test_parts_that_no_stage_has_are_refused():
    with pytest.raises(ValueError, match='backward, step are parts of training: add "train" to the stages'):
        Timer(spans=["step", "backward"], stages={"val"})
