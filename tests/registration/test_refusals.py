"""What a run refuses: verbs where they mean nothing, two loops in one place, a loss set past those who play there."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import threading
import warnings

import pytest
import torch
from tests.engine.scenarios import Act, batches, make_trainer

from cadenza import Callback, Trainer, Watch, When, launch, plan
from cadenza.callbacks import (
    EMA,
    Accumulate,
    CosineSchedule,
    EarlyStopping,
    LRMonitor,
    Metrics,
    MixUp,
    NaNGuard,
    PlateauSchedule,
    Schedule,
    StepSchedule,
    accuracy,
)
from cadenza.registration.checks import CallbackError
from cadenza.testing import Recorder

VERBS = ("train_step", "eval_step", "forward", "backward", "step")

# Loops --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["train", "validate", "test"])
def test_the_same_stage_inside_itself(stage):
    with make_trainer().run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in getattr(run, stage)(batches(1)):
                with pytest.raises(RuntimeError, match="already open"):
                    next(iter(getattr(run, stage)(batches(1))))


def test_training_outside_an_epoch_or_inside_a_validation():
    with make_trainer().run(epochs=1) as run:
        with pytest.raises(RuntimeError, match=r"run\.epochs"):
            next(run.train(batches(1)))
        for _ in run.epochs():
            for _batch in run.validate(batches(1)):
                with pytest.raises(RuntimeError, match=r"run\.epochs"):
                    next(run.train(batches(1)))


def test_epochs_inside_epochs():
    with make_trainer().run(epochs=1) as run:
        for _ in run.epochs():
            with pytest.raises(RuntimeError, match="once at a time"):
                run.epochs()


def test_two_loops_over_epochs_side_by_side():
    recorder = Recorder()
    with make_trainer(recorder).run(epochs=2) as run:
        first, second = run.epochs(), run.epochs()
        next(first)
        with pytest.raises(RuntimeError, match="once at a time"):
            next(second)
    assert recorder.trace.count("before_epoch") == 1


def test_a_run_without_an_end():
    with make_trainer().run() as run, pytest.raises(ValueError, match="how far"):
        run.epochs()


@pytest.mark.parametrize("open_", [lambda run: run.epochs(), lambda run: next(run.validate(batches(1)))])
def test_verbs_are_refused_in_another_thread(open_):
    told = []

    def play(run):
        try:
            open_(run)
        except RuntimeError as error:
            told.append(str(error))

    with make_trainer().run(epochs=1) as run:
        thread = threading.Thread(target=play, args=(run,))
        thread.start()
        thread.join()
    assert len(told) == 1
    assert "thread" in told[0]


def test_an_iterator_whose_pass_has_ended_yields_nothing_more():
    recorder = Recorder()
    with make_trainer(recorder).run(epochs=2) as run:
        kept = None
        for _ in run.epochs():
            if kept is None:
                kept = run.train(batches(3))
                next(kept)
            else:
                before = list(recorder.trace)
                with pytest.raises((StopIteration, RuntimeError)):
                    next(kept)
                assert recorder.trace == before
    assert recorder.trace.count("before_epoch") == recorder.trace.count("after_epoch") == 2


def test_an_iterator_that_outlives_its_run():
    recorder = Recorder()
    with make_trainer(recorder).run(epochs=1) as run:
        for _ in run.epochs():
            kept = run.train(batches(3))
            next(kept)
            break
    before = list(recorder.trace)
    with pytest.raises((StopIteration, RuntimeError)):
        next(kept)
    assert recorder.trace == before


# Verbs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_verbs_without_a_batch(verb):
    with make_trainer().run(epochs=2) as run:
        with pytest.raises(RuntimeError, match="needs a batch"):
            getattr(run, verb)()
        for _ in run.epochs():
            with pytest.raises(RuntimeError, match="needs a batch"):
                getattr(run, verb)()
            list(run.train(batches(1)))
            with pytest.raises(RuntimeError, match="needs a batch"):
                getattr(run, verb)()
            break
        with pytest.raises(RuntimeError, match="needs a batch"):
            getattr(run, verb)()


@pytest.mark.parametrize("verb", ["train_step", "backward", "step"])
def test_training_verbs_in_an_evaluation(verb):
    with make_trainer().run(epochs=1) as run:
        for _batch in run.validate(batches(1)):
            with pytest.raises(RuntimeError, match="for training"):
                getattr(run, verb)()


def test_an_evaluation_step_in_training():
    with make_trainer().run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(1)):
                with pytest.raises(RuntimeError, match="train_step"):
                    run.eval_step()


def test_verbs_after_the_end_of_a_run():
    with make_trainer().run(epochs=1) as run:
        pass
    for open_ in (run.epochs, lambda: next(run.train(batches(1))), lambda: next(run.validate(batches(1)))):
        with pytest.raises(RuntimeError, match="with trainer"):
            open_()
    for verb in VERBS:
        with pytest.raises(RuntimeError, match="needs a batch"):
            getattr(run, verb)()


# A loss set by hand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["before_forward", "around_forward", "after_forward", "before_loss", "after_loss"])
def test_a_loss_by_hand_while_somebody_plays_forward_or_loss(point):
    with make_trainer(Act(point, lambda run: None)).run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(1)):
                run.loss = run.criterion(run.model(run.inputs), run.targets)
                with pytest.raises(RuntimeError, match=r"Act .*run\.forward\(compute\)"):
                    run.backward()
                assert run.forward()
                assert run.backward()


def test_a_loss_by_hand_while_somebody_plays_loss_in_validation():
    told = []
    try:
        with make_trainer(Act("after_loss", lambda run: told.append("played"))).run(epochs=1) as run:
            for _batch in run.validate(batches(1)):
                run.loss = run.criterion(run.model(run.inputs), run.targets)
    except RuntimeError as error:
        told.append("refused" if "Act" in str(error) else str(error))
    assert told == ["refused"]


def test_a_loss_by_hand_with_its_own_backward_while_somebody_plays_loss():
    told = []
    try:
        with make_trainer(Act("after_loss", lambda run: told.append("played"))).run(epochs=1) as run:
            for _ in run.epochs():
                for _batch in run.train(batches(1)):
                    run.loss = run.criterion(run.model(run.inputs), run.targets)
                    run.loss.backward()
                    run.step()
    except RuntimeError as error:
        told.append("refused" if "Act" in str(error) else str(error))
    assert told == ["refused"]


# Runs ---------------------------------------------------------------------------------------------------------------


def test_a_run_is_used_once():
    trainer = make_trainer()
    with trainer.run(epochs=1) as run, pytest.raises(RuntimeError, match="used once"):
        run.__enter__()
    with pytest.raises(RuntimeError, match="used once"), run:
        pass
    trainer.fit(batches(1), epochs=1)
    assert trainer.clock.epochs == 1


def test_a_trainer_runs_once_at_a_time():
    trainer = make_trainer()
    with trainer.run(epochs=1) as run:
        with pytest.raises(RuntimeError, match="already running"):
            trainer.validate(batches(1))
        assert len(list(run.epochs())) == 1
    trainer.validate(batches(1))


class Monitors(Callback):
    def __init__(self, monitor: str) -> None:
        self.monitor = monitor

    def after_best(self, run):
        pass


def test_a_trainer_whose_run_was_refused_runs_when_that_is_mended():
    trainer = make_trainer(Monitors("val/loss"), Monitors("train/loss"))
    with pytest.raises(CallbackError, match="Watch"):
        trainer.fit(batches(1), batches(1), epochs=1)
    trainer.add(Watch("val/loss"))
    trainer.fit(batches(1), batches(1), epochs=1)
    assert trainer.clock.epochs == 1


def test_a_callback_in_two_runs_at_once():
    shared = Recorder()
    with make_trainer(shared).run(epochs=1):
        other = make_trainer(shared)
        with pytest.raises(CallbackError, match="another run"):
            other.fit(batches(1), epochs=1)
    other.fit(batches(1), epochs=1)
    assert other.clock.epochs == 1


def test_a_dataclass_is_a_callback_like_any_other():
    @dataclasses.dataclass
    class Counts(Callback):
        steps: int = 0

        def after_step(self, run):
            self.steps += 1

    one, other = Counts(), Counts()
    make_trainer(one, other).fit(batches(2), epochs=1)
    assert (one.steps, other.steps) == (2, 2)


def test_a_callback_that_goes_on_with_another_model_is_told():
    class Counts(Callback):
        def __init__(self):
            self.steps = 0

        def after_step(self, run):
            self.steps += 1

        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, state):
            self.steps = state["steps"]

    counts, plain = Counts(), Recorder()
    first = make_trainer(counts, plain)
    first.fit(batches(1), epochs=1)
    first.fit(batches(1), epochs=1)
    second = make_trainer(counts, plain)
    with pytest.warns(UserWarning, match="Counts took part in the training of another model") as told:
        second.fit(batches(1), epochs=1)
    assert [one.filename for one in told] == [__file__]
    second.fit(batches(1), epochs=1)
    again = Trainer(second.model, torch.optim.SGD(second.model.parameters(), lr=0.1), callbacks=[counts], device="cpu")
    again.remove(counts)
    again.add(counts)
    del first, second
    before = len(plan._trained_with)
    del counts, again
    gc.collect()
    assert len(plan._trained_with) < before


@pytest.mark.parametrize(
    ("callback", "named"),
    [
        (lambda: EarlyStopping("train/loss"), True),
        (lambda: EMA(0.9), True),
        (lambda: MixUp(), True),  # its own generator goes on
        (lambda: PlateauSchedule("train/loss"), True),  # its reductions stay
        (lambda: When(EMA(0.9), every="2 steps"), True),
        (lambda: CosineSchedule(), False),
        (lambda: When(StepSchedule(2), every="1 step"), False),
        (
            lambda: Schedule(torch=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1), cadence="step"),
            False,
        ),
        (lambda: LRMonitor("1 step"), False),
        (lambda: Accumulate(2), False),
        (lambda: Metrics({"accuracy": accuracy}), False),
        (lambda: NaNGuard(), False),  # no hit so far
    ],
)
def test_only_what_is_carried_over_to_another_model_is_told(callback, named):
    one = callback()
    make_trainer(one).fit(batches(3), epochs=2)
    with warnings.catch_warnings(record=True, action="always") as told:
        make_trainer(one).fit(batches(3), epochs=2)
    assert ["took part in the training of another model" in str(said.message) for said in told] == [True] * named


def test_a_state_that_cannot_be_asked_for_outside_of_a_run_is_told_all_the_same():
    class Late(Callback):
        def before_run(self, run):
            self.kept = run.clock

        def state_dict(self):
            return {"steps": self.kept.steps}

        def load_state_dict(self, state): ...

        def close(self):
            del self.kept

    late = Late()
    make_trainer(late).fit(batches(1), epochs=1)
    with pytest.warns(UserWarning, match="Late took part in the training of another model"):
        make_trainer(late).fit(batches(1), epochs=1)


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy, lambda trainer: launch(trainer.fit, batches(1))])
def test_a_trainer_is_not_pickled(send):
    with pytest.raises(
        TypeError, match=r"A Trainer cannot be pickled .* save model\.state_dict\(\), or add the callback"
    ):
        send(make_trainer())


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
def test_a_run_is_not_pickled(send):
    """Most often it is a callback that kept it."""

    class Keeps(Callback):
        def before_run(self, run):
            self.kept = {"run": run}

    callback = Keeps()
    make_trainer(callback).fit(batches(1), epochs=1)
    with pytest.raises(TypeError, match=r"A run cannot be pickled or copied. Keep the values that you need"):
        send(callback.kept)
