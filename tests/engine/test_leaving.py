"""Leaving a loop of one's own before its end: what is let go at once, and what the next verb still plays."""

from __future__ import annotations

from io import StringIO
from itertools import islice

import pytest
import torch
from tests.engine.scenarios import batches, make_trainer, same_weights
from tqdm import tqdm

from cadenza.engine import passes
from cadenza.testing import Recorder

LEFT = ["exit_train_iter", "exit_iter", "exit_train_epoch"]
OWED = ["after_train_iter", "after_iter", "after_train_epoch"]
WRAPPERS = {
    "plain": lambda loop: loop,
    "tqdm": lambda loop: tqdm(loop, file=StringIO()),
    "disabled tqdm": lambda loop: tqdm(loop, disable=True),
    "enumerate": enumerate,
    "islice": lambda loop: islice(loop, 1),
    "zip": lambda loop: zip(loop, [1], strict=False),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_break_leaves_the_arounds_at_once_and_plays_the_rest_at_the_next_verb(wrap):
    recorder = Recorder(arounds=True)
    with make_trainer(recorder).run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in wrap(run.train(batches(3))):
                run.train_step()
                recorder.trace.clear()
                break
            assert recorder.trace == LEFT
            for _batch in run.validate(batches(1)):
                assert recorder.trace[3:6] == OWED
                assert recorder.trace[6] == "before_val_epoch"


def test_where_instructions_cannot_be_read_the_arounds_are_left_at_the_next_verb(monkeypatch):
    monkeypatch.setattr(passes, "_READS_INSTRUCTIONS", False)
    recorder = Recorder(arounds=True)
    with make_trainer(recorder).run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(3)):
                run.train_step()
                recorder.trace.clear()
                break
            assert recorder.trace == []
            for _batch in run.validate(batches(1)):
                left = [name for name in recorder.trace if name.startswith(("exit_", "after_"))]
                assert left[: len(LEFT + OWED)].count("after_train_epoch") == 1
                assert set(LEFT) <= set(left)


def break_in_a_with(run, body):
    for _ in run.train(batches(3)):
        with torch.enable_grad():
            body()
            break


def break_before_a_finally(run, body):
    for _ in run.train(batches(3)):
        try:
            body()
            break
        finally:
            str(run)


def break_after_an_exception(run, body):
    for _ in run.train(batches(3)):
        try:
            raise KeyError
        except KeyError:
            body()
            break


def return_a_value(run, body):
    for batch in run.train(batches(3)):
        body()
        return batch
    return None


def return_in_a_with(run, body):
    for _ in run.train(batches(3)):
        with torch.enable_grad():
            return body()
    return None


@pytest.mark.parametrize(
    "play", [break_in_a_with, break_before_a_finally, break_after_an_exception, return_a_value, return_in_a_with]
)
def test_every_break_and_return_leaves_the_arounds_at_once(play):
    recorder = Recorder(arounds=True)
    with make_trainer(recorder).run(epochs=1) as run:
        for _ in run.epochs():
            play(run, recorder.trace.clear)
            assert recorder.trace == LEFT


@pytest.mark.parametrize(
    "let_go", [lambda loop: next(loop), lambda loop: any(True for _ in loop), lambda loop: (next(loop), loop.close())]
)
def test_an_iterator_that_is_let_go_ends_at_the_next_verb(let_go):
    recorder = Recorder(arounds=True)
    with make_trainer(recorder).run(epochs=1) as run:
        for _ in run.epochs():
            let_go(run.train(batches(3)))
            list(run.validate(batches(1)))
    ended = recorder.trace[: recorder.trace.index("before_val_epoch")]
    assert ended[-6:] == LEFT + OWED


def test_break_leaves_the_rest_to_the_end_of_the_run():
    recorder = Recorder(arounds=True)
    trainer = make_trainer(recorder)
    with trainer.run(epochs=3) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(3)):
                run.train_step()
                break
            recorder.trace.clear()
            break
        assert recorder.trace == ["exit_epoch"]
    assert recorder.trace == ["exit_epoch", *OWED, "after_epoch", "after_log", "exit_run", "after_run"]
    assert (trainer.clock.batches, trainer.clock.epochs) == (1, 1)


def test_return_is_a_break_of_all_loops():
    recorder = Recorder(arounds=True)

    def train(run):
        for _ in run.epochs():
            for _batch in run.train(batches(3)):
                run.train_step()
                recorder.trace.clear()
                return

    with make_trainer(recorder).run(epochs=3) as run:
        train(run)
        assert recorder.trace == [*LEFT, "exit_epoch"]
    assert recorder.trace[4:] == [*OWED, "after_epoch", "after_log", "exit_run", "after_run"]


def test_a_kept_iterator_hides_its_break_until_the_outer_loop_goes_on():
    recorder = Recorder(arounds=True)
    with make_trainer(recorder).run(epochs=2) as run:
        for _ in run.epochs():
            bar = tqdm(run.train(batches(3)), file=StringIO())
            for _batch in bar:
                run.train_step()
                recorder.trace.clear()
                break
            assert recorder.trace == []
            assert run.batch_idx == 0
        assert recorder.trace[:7] == [*LEFT, *OWED, "exit_epoch"]


def test_epochs_can_be_gone_on_with_after_a_break():
    recorder = Recorder()
    trainer = make_trainer(recorder)
    with trainer.run(epochs=3) as run:
        for _ in run.epochs():
            break
        epochs = list(run.epochs())
    assert epochs == [1, 2]
    assert recorder.trace.count("after_epoch") == trainer.clock.epochs == 3


def test_held_gradients_are_stepped_after_a_break():
    trainer, reference = make_trainer(), make_trainer()
    with trainer.run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(3)):
                run.hold_step()
                run.train_step()
                break
    reference.fit(batches(3)[:1], epochs=1)
    assert trainer.clock.steps == 1
    assert same_weights(trainer.model, reference.model)
