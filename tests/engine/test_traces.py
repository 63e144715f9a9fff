"""Golden traces: what is played in each scenario, one file each, checked by hand against the design.

The files are indented by the depth of the spans for reading; the indentation is not compared. A line that starts
with ``#`` is a comment.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.engine.scenarios import Act, Oops, RecordingMain, batches, fail, make_trainer
from torch import nn

from cadenza import Callback, MainCallback, Watch
from cadenza.callbacks import Checkpoint
from cadenza.testing import Recorder

TRACES = Path(__file__).parent / "traces"
SCENARIOS: dict[str, Callable[[], Recorder]] = {}


def scenario(function: Callable[[], Recorder]) -> Callable[[], Recorder]:
    SCENARIOS[function.__name__] = function
    return function


# Without requests ---------------------------------------------------------------------------------------------------


@scenario
def plain_fit():
    recorder = Recorder()
    make_trainer(recorder).fit(batches(2), epochs=2)
    return recorder


@scenario
def fit_with_arounds():
    recorder = Recorder(arounds=True)
    make_trainer(recorder).fit(batches(1), batches(1), epochs=1)
    return recorder


@scenario
def fit_with_behaviours():
    recorder = Recorder()
    main = RecordingMain(recorder.trace)
    make_trainer(recorder, main, Watch("val/loss")).fit(batches(2), batches(1), epochs=1)
    return recorder


@scenario
def validation():
    recorder = Recorder()
    make_trainer(recorder, Watch("train/loss")).fit(batches(2), batches(2), epochs=2)
    return recorder


@scenario
def validation_inside_an_epoch():
    recorder = Recorder()
    trainer = make_trainer(recorder, Watch("val/loss"))
    trainer.fit(batches(3), batches(1), epochs=1, validate_every="2 steps")
    return recorder


@scenario
def several_loaders():
    recorder = Recorder()
    loaders = {"near": batches(1), "far": batches(2)}
    make_trainer(recorder).fit(batches(1), loaders, test_loaders={"held": batches(1)}, epochs=1)
    return recorder


@scenario
def steps_cut_the_epoch():
    recorder = Recorder()
    make_trainer(recorder, RecordingMain(recorder.trace)).fit(batches(2), batches(1), steps=3)
    return recorder


@scenario
def two_fits():
    recorder = Recorder()
    trainer = make_trainer(recorder)
    trainer.fit(batches(1), epochs=1)
    trainer.fit(batches(1), epochs=1)
    return recorder


@scenario
def validate():
    recorder = Recorder(arounds=True)
    make_trainer(recorder).validate(batches(2))
    return recorder


@scenario
def over_test_loaders():
    recorder = Recorder()
    make_trainer(recorder).test({"a": batches(1), "b": batches(1)})
    return recorder


@scenario
def predict():
    recorder = Recorder()
    make_trainer(recorder).predict(batches(2))
    return recorder


@scenario
def resumed_in_mid_epoch():
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        saving = Checkpoint("1 step", to=folder, background=False)
        with pytest.raises(Oops):
            make_trainer(saving, Act("before_step", fail, time=1)).fit(batches(3), batches(1), epochs=1)
        again = Checkpoint("1 epoch", to=folder, background=False)
        make_trainer(recorder, again).fit(batches(3), batches(1), epochs=1, resume="auto")
    return recorder


# With requests ------------------------------------------------------------------------------------------------------


def _asking(ask: Callback) -> Recorder:
    recorder = Recorder()
    make_trainer(recorder, ask).fit(batches(2), batches(1), epochs=1)
    return recorder


@scenario
def skip_batch_before_the_body():
    return _asking(Act("before_iter", lambda run: run.skip_batch()))


@scenario
def skip_batch_after_forward():
    return _asking(Act("after_forward", lambda run: run.skip_batch(), time=None))


@scenario
def skip_backward():
    return _asking(Act("before_backward", lambda run: run.skip_backward()))


@scenario
def skip_step():
    return _asking(Act("after_loss", lambda run: run.skip_step()))


@scenario
def skip_step_at_its_last_place():
    return _asking(Act("before_step", lambda run: run.skip_step()))


@scenario
def skip_zero_grad():
    return _asking(Act("after_step", lambda run: run.skip_zero_grad()))


@scenario
def skip_validation():
    return _asking(Act("after_train_epoch", lambda run: run.skip_validation()))


@scenario
def end_epoch():
    return _asking(Act("before_forward", lambda run: run.end_epoch()))


@scenario
def stop():
    return _asking(Act("after_forward", lambda run: run.stop("enough")))


@scenario
def lr_every_iteration():
    recorder = Recorder()
    skip = Act("before_step", lambda run: run.skip_step())
    main = RecordingMain(recorder.trace, lr_every="iter")
    make_trainer(recorder, main, skip).fit(batches(2), epochs=1)
    return recorder


@scenario
def accumulation():
    recorder = Recorder()

    def hold(run):
        if run.batch_idx % 2 == 0:
            run.hold_step()

    make_trainer(recorder, Act("after_backward", hold, time=None)).fit(batches(3), epochs=1)
    return recorder


# Exceptions ---------------------------------------------------------------------------------------------------------


def _failing(point: str) -> Recorder:
    recorder = Recorder(arounds=True)
    trainer = make_trainer(recorder, Act(point, fail))
    with pytest.raises(Oops):
        trainer.fit(batches(1), batches(1), epochs=1)
    return recorder


@scenario
def exception():
    return _failing("after_loss")


@scenario
def exception_between_actions():
    return _failing("before_val_iter")


# Own behaviours -----------------------------------------------------------------------------------------------------


@scenario
def lbfgs():
    recorder = Recorder(arounds=True)
    trainer = make_trainer(recorder, optimizer=lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2, max_eval=4))
    trainer.fit(batches(1), epochs=1)
    return recorder


class StepsItself(MainCallback):
    def on_iter_backward(self, run):
        run.optimizer.zero_grad()
        run.loss.backward()
        run.optimizer.step()


@scenario
def own_backward_that_steps():
    recorder = Recorder()
    make_trainer(recorder, StepsItself()).fit(batches(2), epochs=1)
    return recorder


@scenario
def own_loss():
    class SetsItsLoss(RecordingMain):
        def on_iter_forward(self, run):
            super().on_iter_forward(run)
            run.loss = nn.functional.cross_entropy(run.output, run.targets)

    recorder = Recorder()
    make_trainer(recorder, SetsItsLoss(recorder.trace)).fit(batches(1), batches(1), epochs=1)
    return recorder


# The tests ----------------------------------------------------------------------------------------------------------


def golden(name: str) -> list[str]:
    lines = (TRACES / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_trace_is_the_golden_one(name):
    assert SCENARIOS[name]().trace == golden(name)


def _with_whole_steps(run):
    run.train_step()


def _with_open_verbs(run):
    run.forward()
    run.backward()
    run.step()


@pytest.mark.parametrize("train", [_with_whole_steps, _with_open_verbs])
def test_own_loop_has_the_trace_of_fit(train):
    recorder = Recorder()
    with make_trainer(recorder, Watch("train/loss")).run(epochs=2) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(2)):
                train(run)
            for _batch in run.validate(batches(2)):
                run.eval_step()
    assert recorder.trace == golden("validation")


def test_every_golden_trace_has_a_scenario():
    assert sorted(path.stem for path in TRACES.glob("*.txt")) == sorted(SCENARIOS)
