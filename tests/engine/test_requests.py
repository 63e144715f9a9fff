"""What requests do to weights, gradients and the clock; where they cannot be made; how they go together."""

from __future__ import annotations

import pytest
import torch
from tests.engine.scenarios import Act, Ask, batches, make_trainer, same_weights, weights

from cadenza import Callback
from cadenza.points import POINTS
from cadenza.testing import Recorder

# Where --------------------------------------------------------------------------------------------------------------

ITERATION = [
    "before_fetch",
    "around_fetch",
    "after_fetch",
    "before_iter",
    "around_iter",
    "before_train_iter",
    "around_train_iter",
    "before_forward",
    "around_forward",
    "on_train_forward",
    "on_iter_forward",
    "after_forward",
    "before_loss",
    "around_loss",
    "on_iter_loss",
    "after_loss",
    "before_backward",
    "around_backward",
    "on_iter_backward",
    "after_backward",
    "before_step",
    "around_step",
    "on_iter_step",
    "after_step",
    "before_zero_grad",
    "around_zero_grad",
    "on_iter_zero_grad",
    "after_zero_grad",
    "after_train_iter",
    "after_iter",
]
LAST = {
    "skip_batch": "before_backward",
    "skip_backward": "before_backward",
    "skip_step": "before_step",
    "hold_step": "after_backward",
    "skip_zero_grad": "before_zero_grad",
    "end_epoch": "after_iter",
}


@pytest.mark.parametrize("request_", LAST)
def test_the_table_has_the_last_places_of_the_design(request_):
    taken = [point for point in ITERATION if POINTS[point].takes(request_, "train")]
    assert taken == ITERATION[: ITERATION.index(LAST[request_]) + 1]


@pytest.mark.parametrize("request_", ["skip_backward", "skip_step", "hold_step", "skip_zero_grad", "skip_validation"])
@pytest.mark.parametrize("stage", ["val", "test", "pred"])
def test_the_table_knows_stages_without_the_span(request_, stage):
    assert not any(point.takes(request_, stage) for point in POINTS.values())


@pytest.mark.parametrize("stage", [None, "train", "val", "test", "pred"])
def test_the_table_takes_a_stop_everywhere(stage):
    played = [point for point in POINTS.values() if stage is None or stage in point.stages]
    assert all(point.takes("stop", stage) for point in played)


def test_a_request_that_comes_too_late_says_where_it_belongs():
    trainer = make_trainer(Ask("after_step", "skip_step"))
    with pytest.raises(RuntimeError, match=r"run\.skip_step\(\).*after_step.*last place is before_step") as caught:
        trainer.fit(batches(1), epochs=1)
    assert "Ask at after_step" in "".join(caught.value.__notes__)


def test_a_save_that_nobody_serves_is_refused():
    with pytest.raises(RuntimeError, match="nobody to save"):
        make_trainer(Ask("after_step", "save")).fit(batches(1), epochs=1)


@pytest.mark.parametrize("verb", ["fit", "predict"])
def test_the_body_of_a_loop_is_a_place_too(verb):
    trainer = make_trainer()
    with trainer.run(epochs=1) if verb == "fit" else trainer._run(verb) as run:
        if verb == "fit":
            for _ in run.epochs():
                for _batch in run.train(batches(1)):
                    run.train_step()
                    with pytest.raises(RuntimeError, match="last place"):
                        run.skip_step()
        else:
            for _batch in run.predicting(batches(1)):
                run.eval_step()
                with pytest.raises(RuntimeError, match="last place"):
                    run.skip_batch()


# What comes of them -------------------------------------------------------------------------------------------------


def on(index: int):
    return lambda run: run.batch_idx == index


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def train_by_hand(windows: list[list[int]], keep: bool = False) -> torch.nn.Module:
    """Plain SGD over windows of batches: the gradients of a window are added up."""
    trainer, data = make_trainer(optimizer=sgd), batches(3)
    model, optimizer = trainer.model, sgd(trainer.model.parameters())
    for window in windows:
        for index in window:
            torch.nn.functional.cross_entropy(model(data[index][0]), data[index][1]).backward()
        optimizer.step()
        if not keep:
            optimizer.zero_grad()
    return model


ASKED = {
    "nothing": ([], [[0], [1], [2]]),
    "skip a batch": ([("after_forward", "skip_batch", on(1))], [[0], [2]]),
    "skip a backward": ([("after_loss", "skip_backward", on(1))], [[0], [2]]),
    "skip a step": ([("before_step", "skip_step", on(1))], [[0], [2]]),
    "hold": ([("after_backward", "hold_step", on(0))], [[0, 1], [2]]),
    "hold all": ([("before_iter", "hold_step")], [[0, 1, 2]]),
    "hold at the end": ([("before_iter", "hold_step", on(2))], [[0], [1], [2]]),
    "end the epoch": ([("before_iter", "end_epoch", on(1))], [[0], [1]]),
    "stop": ([("before_iter", "stop", on(1))], [[0], [1]]),
    "hold, then end the epoch": (
        [("before_iter", "hold_step"), ("after_loss", "end_epoch", on(1))],
        [[0, 1]],
    ),
    "hold, then end the epoch late": (
        [("before_iter", "hold_step"), ("after_iter", "end_epoch", on(1))],
        [[0, 1]],
    ),
    "hold, then stop": ([("before_iter", "hold_step"), ("after_loss", "stop", on(1))], []),
    "hold, then skip a batch": (
        [("before_iter", "hold_step", on(0)), ("before_iter", "skip_batch", on(1))],
        [[0, 2]],
    ),
    "hold, then skip the last batch": (
        [("before_iter", "hold_step", on(1)), ("before_iter", "skip_batch", on(2))],
        [[0], [1]],
    ),
    "hold, then skip the last backward": (
        [("before_iter", "hold_step", on(1)), ("before_backward", "skip_backward", on(2))],
        [[0], [1]],
    ),
    "hold, then drop the window": (
        [("before_iter", "hold_step", on(0)), ("before_step", "skip_step", on(1))],
        [[2]],
    ),
}


@pytest.mark.parametrize("known_length", [True, False], ids=["list", "generator"])
@pytest.mark.parametrize("name", ASKED)
def test_weights_are_those_of_the_windows(name, known_length):
    asks, windows = ASKED[name]
    trainer = make_trainer(*(Ask(*ask) for ask in asks), optimizer=sgd)
    trainer.fit(batches(3) if known_length else _Unsized(batches(3)), epochs=1)
    assert trainer.clock.steps == len(windows)
    assert same_weights(trainer.model, train_by_hand(windows))


def test_a_step_that_is_held_and_skipped_at_once_is_dropped():
    asks = (Ask("before_iter", "hold_step", on(0)), Ask("after_loss", "skip_step", on(0)))
    trainer = make_trainer(*asks, optimizer=sgd)
    trainer.fit(batches(3), epochs=1)
    without_batch, without_window = train_by_hand([[1], [2]]), train_by_hand([[2]])
    assert same_weights(trainer.model, without_batch) or same_weights(trainer.model, without_window)


class _Unsized:
    def __init__(self, data) -> None:
        self.data = data

    def __iter__(self):
        return iter(self.data)


def test_gradients_stay_after_skip_zero_grad():
    trainer = make_trainer(Ask("after_step", "skip_zero_grad"), optimizer=sgd)
    trainer.fit(batches(3), epochs=1)
    assert same_weights(trainer.model, train_by_hand([[0], [1], [2]], keep=True))


def test_gradients_are_gone_after_skip_step():
    seen = []
    look = Act("after_train_iter", lambda run: seen.append([p.grad for p in run.module.parameters()]))
    make_trainer(Ask("before_step", "skip_step"), look).fit(batches(1), epochs=1)
    assert seen == [[None] * 4]


def test_a_window_left_by_a_stop_does_not_reach_the_next_fit():
    trainer = make_trainer(Ask("before_iter", "hold_step"), Act("after_loss", lambda run: run.stop()))
    before = weights(trainer.model)
    trainer.fit(batches(2), epochs=1)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer.model), strict=True))
    seen = []
    trainer.add(Act("before_forward", lambda run: seen.append([p.grad for p in run.module.parameters()])))
    trainer.fit(batches(1), epochs=1)
    assert seen == [[None] * 4]


@pytest.mark.parametrize(
    ("point", "request_", "later"),
    [
        ("before_iter", "skip_batch", {"after_train_iter": {"forward", "loss", "backward", "step", "zero_grad"}}),
        ("before_loss", "skip_batch", {"after_iter": {"loss", "backward", "step", "zero_grad"}}),
        ("before_backward", "skip_backward", {"after_train_iter": {"backward", "step", "zero_grad"}}),
        ("after_loss", "skip_step", {"before_zero_grad": {"step"}, "after_iter": {"step"}}),
        ("after_backward", "hold_step", {"after_train_iter": {"step", "zero_grad"}}),
        ("before_zero_grad", "skip_zero_grad", {"after_train_iter": {"zero_grad"}}),
    ],
)
def test_skipped_tells_the_later_points(point, request_, later):
    seen = {}
    looks = [Act(at, lambda run, at=at: seen.setdefault(at, set(run.skipped))) for at in later]
    make_trainer(Act(point, lambda run: getattr(run, request_)()), *looks).fit(batches(2), epochs=1)
    assert seen == later


# Together -----------------------------------------------------------------------------------------------------------


def test_requests_end_with_their_fit():
    recorder = Recorder(["after_val_epoch"])
    trainer = make_trainer(Act("after_step", lambda run: (run.stop("first"), run.skip_validation())), recorder)
    trainer.fit(batches(3), batches(1), epochs=1)
    assert (trainer.clock.batches, trainer.clock.epochs, recorder.trace) == (1, 0, [])
    trainer.fit(batches(3), batches(1), epochs=1)
    assert (trainer.clock.batches, trainer.clock.epochs, recorder.trace) == (4, 1, ["after_val_epoch"])


def test_the_reason_is_known_after_the_fit_and_only_until_the_next():
    trainer = make_trainer(Act("after_step", lambda run: run.stop("enough")))
    assert trainer.stop_reason is None
    trainer.fit(batches(2), epochs=2)
    assert trainer.stop_reason == "enough"
    trainer.remove(trainer.callbacks[0])
    trainer.validate(batches(2))
    assert trainer.stop_reason == "enough"
    trainer.fit(batches(2), epochs=1)
    assert trainer.stop_reason is None


def test_the_first_reason_to_stop_is_kept():
    reasons = []
    stops = [Act("after_step", lambda run, why=why: run.stop(why)) for why in ("one", "two")]
    make_trainer(*stops, Act("after_run", lambda run: reasons.append(run.stop_reason))).fit(batches(2), epochs=1)
    assert reasons == ["one"]


@pytest.mark.parametrize("event", ["after_log", "after_best"])
def test_a_stop_at_an_event_ends_the_run_in_order(event):
    recorder = Recorder(["before_epoch", "after_epoch", "after_run"])
    watcher = Callback()
    watcher.monitor = "train/loss"
    make_trainer(watcher, Ask(event, "stop"), recorder).fit(batches(1), batches(1), epochs=3)
    assert recorder.trace == ["before_epoch", "after_epoch", "after_run"]
