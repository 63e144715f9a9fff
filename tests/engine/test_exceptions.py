"""What an exception does besides the order in which it ends things, which ``test_matrix.py`` looks at."""

from __future__ import annotations

import contextlib
from io import StringIO
from itertools import islice

import pytest
from tests.engine.scenarios import Act, Held, Oops, RecordingMain, batches, fail, make_trainer
from tqdm import tqdm

from cadenza import Callback, MainCallback
from cadenza.testing import Recorder

OPEN = ["train_iter", "iter", "train_epoch", "epoch", "run"]


def exits(trace: list[str]) -> list[str]:
    return [line for line in trace if line.startswith("exit_")]


# Seen by callbacks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Oops, KeyboardInterrupt, SystemExit, GeneratorExit, StopAsyncIteration])
@pytest.mark.parametrize("point", ["before_backward", "before_train_iter", "before_run"])
def test_after_error_and_close_follow_whatever_was_raised(kind, point):
    seen = []

    class Sees(Callback):
        def after_error(self, run):
            seen.append(type(run.error))

        def close(self):
            seen.append("closed")

    def raise_it(run):
        raise kind

    with pytest.raises(kind):
        make_trainer(Sees(), Act(point, raise_it)).fit(batches(1), epochs=1)
    assert seen == [kind, "closed"]


def test_the_fields_of_the_iteration_are_readable_at_after_error():
    seen = []
    look = Act("after_error", lambda run: seen.append((run.stage, run.batch_idx, run.loss.ndim, run.skipped)))
    trainer = make_trainer(Act("before_backward", fail, time=1), look)
    with pytest.raises(Oops):
        trainer.fit(batches(2), epochs=1)
    assert seen == [("train", 1, 0, frozenset())]


def test_errors_on_the_way_down_become_notes():
    class FailsToo(Callback):
        def after_error(self, run):
            raise KeyError("while telling")

        def close(self):
            raise OSError("while closing")

    recorder = Recorder(["after_error"])
    trainer = make_trainer(FailsToo(), Act("before_step", fail), recorder)
    with pytest.raises(Oops) as caught:
        trainer.fit(batches(1), epochs=1)
    notes = "\n".join(caught.value.__notes__)
    for words in ("Act at before_step", "while telling", "while closing"):
        assert words in notes
    assert recorder.trace == ["after_error"]


def test_an_around_cannot_swallow_the_exception():
    class Swallows:
        def __enter__(self):
            pass

        def __exit__(self, *_):
            return True

    class Catches(Callback):
        def around_forward(self, run):
            try:
                yield
            except Oops:
                pass

    spans = ("forward", "train_iter", "epoch", "run")
    arounds = [Act(f"around_{span}", lambda run: Swallows(), time=None) for span in spans]
    with pytest.raises(Oops):
        make_trainer(Catches(), RecordingMain([], act=lambda name, run: fail(run)), *arounds).fit(batches(1), epochs=1)


@pytest.mark.parametrize("point", ["before_epoch", "before_train_iter", "before_forward", "after_iter", "around_fetch"])
def test_a_stop_iteration_is_no_end_of_a_loop(point):
    def leak(run):
        next(iter(()))

    recorder = Recorder(["after_error", "after_run"])
    with pytest.raises((StopIteration, RuntimeError)) as caught:
        make_trainer(recorder, Act(point, leak)).fit(batches(2), epochs=1)
    assert recorder.trace == ["after_error"]
    assert f"Act at {point}" in caught.value.__notes__[0]
    if point != "before_forward":  # inside a step it is raised as it is, elsewhere Python does not allow that
        assert str(caught.value).startswith("StopIteration was raised where no iterator ends. Catch it where next()")


def test_an_error_of_close_ends_an_orderly_run():
    class FailsToClose(Callback):
        def close(self):
            raise OSError("full")

    closed = []
    other = Callback()
    other.close = lambda: closed.append(True)
    with pytest.raises(OSError, match="full") as caught:
        make_trainer(FailsToClose(), other).fit(batches(1), epochs=1)
    assert "FailsToClose.close" in "".join(caught.value.__notes__)
    assert closed == [True]


def test_a_callback_that_was_removed_is_closed_too():
    class Leaves(Callback):
        closed = 0

        def after_iter(self, run):
            if run.batch_idx == 0:
                trainer.remove(self)

        def close(self):
            self.closed += 1

    callback = Leaves()
    trainer = make_trainer(callback)
    trainer.fit(batches(3), epochs=1)
    assert callback.closed == 1


# Whom the note names ------------------------------------------------------------------------------------------------


class OwnForward(MainCallback):
    def on_iter_forward(self, run):
        run.output = run.model(run.inputs)


def test_the_note_does_not_blame_a_behaviour_that_had_ended():
    def criterion(output, targets):
        raise Oops

    trainer = make_trainer(OwnForward())
    trainer._training.criterion = criterion
    with pytest.raises(Oops) as caught:
        trainer.fit(batches(1), epochs=1)
    assert "on_iter_forward" not in "".join(caught.value.__notes__)


def test_a_behaviour_is_named_also_when_somebody_plays_around_it():
    class Fails(MainCallback):
        def on_iter_loss(self, run):
            raise Oops

    with pytest.raises(Oops) as caught:
        make_trainer(Fails(), Act("around_loss", lambda run: Held(lambda error: None))).fit(batches(1), epochs=1)
    assert any("Fails" in note and "on_iter_loss" in note for note in caught.value.__notes__)


# In a loop of one's own ---------------------------------------------------------------------------------------------


def own_loop(trainer, body) -> None:
    with trainer.run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(3)):
                body(run)


@pytest.mark.parametrize("behaviour", ["on_train_forward", "on_iter_step"])
def test_what_a_verb_raises_is_passed_to_all_arounds(behaviour):
    recorder = Recorder([f"around_{span}" for span in OPEN])
    main = RecordingMain([], lambda name, run: fail(run) if name == behaviour else None)
    with pytest.raises(Oops):
        own_loop(make_trainer(recorder, main), lambda run: run.train_step())
    assert exits(recorder.trace) == [f"exit_{span} Oops" for span in OPEN]


@pytest.mark.parametrize(
    ("point", "still_open"),
    [("before_epoch", 1), ("before_train_epoch", 2), ("before_fetch", 3), ("before_train_iter", 4)],
)
def test_what_a_loop_raises_is_passed_to_all_arounds(point, still_open):
    recorder = Recorder([f"around_{span}" for span in OPEN])
    with pytest.raises(Oops):
        own_loop(make_trainer(recorder, Act(point, fail)), lambda run: run.train_step())
    assert exits(recorder.trace) == [f"exit_{span} Oops" for span in OPEN[-still_open:]]


def wrapping(loop):
    try:
        yield from (batch for _, batch in enumerate(loop))
    finally:
        pass


WRAPPERS = {
    "plain": lambda loop: loop,
    "tqdm": lambda loop: tqdm(loop, file=StringIO()),
    "disabled tqdm": lambda loop: tqdm(loop, disable=True),
    "a generator": wrapping,
    "zip": lambda loop: zip(loop, range(9), strict=False),
    "islice": lambda loop: islice(loop, 9),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_what_the_body_raises_leaves_all_arounds_innermost_first(wrap):
    recorder = Recorder(arounds=True)

    def train(trainer):
        with trainer.run(epochs=1) as run:
            for _ in wrap(run.epochs()):
                for _batch in wrap(run.train(batches(3))):
                    with contextlib.nullcontext():
                        fail(run)

    with pytest.raises(Oops) as caught:
        train(make_trainer(recorder))
    assert exits(recorder.trace)[1:] == [f"exit_{span} Oops" for span in OPEN]
    assert recorder.trace[-1] == "after_error"
    assert any("train batch 1" in note for note in caught.value.__notes__)


def test_what_the_body_raises_may_be_caught_before_the_run_ends():
    recorder = Recorder(arounds=True)
    with make_trainer(recorder).run(epochs=1) as run:
        for _ in run.epochs():
            try:
                for _batch in run.train(batches(3)):
                    fail(run)
            except Oops:
                recorder.trace.append("caught")
            for _batch in run.validate(batches(1)):
                run.eval_step()
    assert not any("Oops" in line for line in exits(recorder.trace))
    order = [recorder.trace.index(line) for line in ("caught", "after_train_epoch", "before_val_epoch")]
    assert order == sorted(order)
    assert recorder.trace[-1] == "after_run"


def test_an_error_that_the_body_caught_is_not_passed_on_later():
    recorder = Recorder(arounds=True)

    def body(run):
        try:
            run.train_step()
        except Oops:
            return
        run.end_epoch()

    own_loop(make_trainer(recorder, Act("before_forward", fail)), body)
    assert not any("Oops" in line for line in exits(recorder.trace))
    assert recorder.trace[-1] == "after_run"


def test_an_error_that_the_body_caught_is_not_passed_on_at_a_break():
    recorder = Recorder(arounds=True)
    with make_trainer(recorder, Act("before_forward", fail)).run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(3)):
                try:
                    run.train_step()
                except Oops:
                    continue
                break
    assert not any("Oops" in line for line in exits(recorder.trace))


def test_an_around_that_fails_at_a_break_fails_the_run():
    recorder = Recorder(arounds=True)

    def complain(error):
        raise Oops

    def leave_at_once(trainer):
        with trainer.run(epochs=1) as run:
            for _ in run.epochs():
                for _batch in run.train(batches(3)):
                    break

    with pytest.raises(Oops):
        leave_at_once(make_trainer(recorder, Act("around_train_epoch", lambda run: Held(complain))))
    assert "after_run" not in recorder.trace
    assert recorder.trace[-1] == "after_error"


def test_an_around_may_be_a_decorated_context_manager() -> None:
    held: list[str] = []

    class Decorated(Callback):
        @contextlib.contextmanager
        def around_epoch(self, run):
            held.append("enter")
            yield
            held.append("exit")

    make_trainer(Decorated()).fit(batches(2), epochs=1)
    assert held == ["enter", "exit"]
