"""A loop of one's own: the same as ``fit``, whatever is done in its body."""

from __future__ import annotations

import pytest
import torch
from tests.engine.scenarios import Act, Ask, RecordingMain, batches, make_trainer, same_weights
from torch import nn

from cadenza import MainCallback
from cadenza.testing import Recorder, tiny_classifier

# The same as fit ----------------------------------------------------------------------------------------------------


def with_dropout() -> nn.Module:
    return nn.Sequential(tiny_classifier(), nn.Dropout(0.2))


def whole(run):
    assert run.train_step() is True


def in_verbs(run):
    assert (run.forward(), run.backward(), run.step()) == (True, True, True)


def with_compute(run):
    def compute(run):
        run.output = run.model(run.inputs)
        run.loss = run.criterion(run.output, run.targets)

    assert (run.forward(compute), run.backward(), run.step()) == (True, True, True)


def by_hand(run):
    run.loss = run.criterion(run.model(run.inputs), run.targets)
    assert (run.backward(), run.step()) == (True, True)


@pytest.mark.parametrize("train", [whole, in_verbs, with_compute, by_hand])
def test_weights_and_metrics_are_those_of_fit(train):
    fitted, own = make_trainer(model=with_dropout()), make_trainer(model=with_dropout())
    training, validation = batches(3), batches(2)
    torch.manual_seed(3)
    fitted.fit(training, validation, epochs=2)
    torch.manual_seed(3)
    with own.run(epochs=2) as run:
        for _ in run.epochs():
            for _batch in run.train(training):
                train(run)
            for _batch in run.validate(validation):
                run.eval_step()
    assert same_weights(fitted.model, own.model)
    assert own.history.epochs == fitted.history.epochs
    assert own.clock.state_dict() | {"seconds": 0} == fitted.clock.state_dict() | {"seconds": 0}


def test_a_limit_in_steps_ends_the_loops():
    trainer = make_trainer()
    with trainer.run(steps=4) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(3)):
                run.train_step()
    assert (trainer.clock.steps, trainer.clock.batches, trainer.clock.epochs) == (4, 4, 1)


def test_a_batch_asked_away_before_the_body_is_not_yielded():
    trainer = make_trainer(Ask("before_train_iter", "skip_batch", lambda run: run.batch_idx == 1))
    with trainer.run(epochs=1) as run:
        for _ in run.epochs():
            seen = [run.batch_idx for _ in run.train(batches(3))]
    assert seen == [0, 2]
    assert trainer.clock.batches == 3


@pytest.mark.parametrize(
    ("request_", "results"),
    [
        ("skip_batch", (False, False, False)),
        ("skip_backward", (True, False, False)),
        ("skip_step", (True, True, False)),
        ("hold_step", (True, True, False)),
        ("skip_zero_grad", (True, True, True)),
    ],
)
def test_verbs_say_what_was_asked_away(request_, results):
    with make_trainer().run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(2)):
                if run.batch_idx == 0:
                    getattr(run, request_)()
                    assert (run.forward(), run.backward(), run.step()) == results
                else:
                    assert run.train_step() is True


def test_compute_takes_the_place_of_the_behaviour_for_one_call():
    trace: list[str] = []
    recorder = Recorder(["before_forward", "after_forward", "before_loss", "after_loss"])

    def compute(run):
        trace.append("compute")
        run.output = run.model(run.inputs)
        return False  # without meaning

    with make_trainer(RecordingMain(trace), recorder).run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(2)):
                assert run.forward(compute if run.batch_idx == 0 else None)
    assert trace == ["compute", "on_iter_loss", "on_train_forward", "on_iter_forward", "on_iter_loss", "on_lr_adjust"]
    assert recorder.trace == ["before_forward", "after_forward", "before_loss", "after_loss"] * 2


# Fields -------------------------------------------------------------------------------------------------------------


def gone(run, *names: str) -> bool:
    return not any(hasattr(run, name) for name in names)


def test_fields_live_in_the_body_and_are_gone_afterwards():
    watch = []
    before = Act("before_forward", lambda run: watch.append(gone(run, "output", "loss")), time=None)
    with make_trainer(before).run(epochs=1) as run:
        assert gone(run, "batch", "batch_idx", "inputs", "targets", "skipped", "output", "loss")
        for _ in run.epochs():
            for batch in run.train(batches(2)):
                assert run.batch is batch
                assert run.inputs is batch[0]
                assert gone(run, "output", "loss")
                run.train_step()
                assert run.output.shape == (4, 3)
                assert run.loss.shape == ()
                assert run.skipped == frozenset()
            assert gone(run, "batch", "batch_idx", "inputs", "targets", "skipped", "output", "loss")
            with pytest.raises(AttributeError, match=r"run\.loss exists from after_loss"):
                run.loss
    assert watch == [True, True]


def test_no_torch_mode_is_held_in_a_body():
    class Infers(MainCallback):
        inference_mode = True

    inside = []
    look = Act("after_forward", lambda run: inside.append(torch.is_inference_mode_enabled()), time=None)
    with make_trainer(Infers(), look).run(epochs=1) as run:
        for _batch in run.validate(batches(2)):
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (True, False)
            run.eval_step()
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (True, False)
    assert inside == [True, True]
