"""A pass inside the body of another: it ends by itself, and everything around it is as before."""

from __future__ import annotations

import pytest
import torch
from tests.engine.scenarios import Act, Ask, batches, flags, frozen_model, make_trainer, same_weights, torch_modes

from cadenza.points import POINTS, Kind
from cadenza.testing import Recorder


@pytest.mark.parametrize("leave", [True, False], ids=["break", "to the end"])
def test_a_nested_validation_gives_everything_back(leave):
    plain, nested = make_trainer(model=frozen_model()), make_trainer(model=frozen_model())
    plain.fit(batches(2), epochs=1)
    with nested.run(epochs=1) as run:
        for _ in run.epochs():
            for batch in run.train(batches(2)):
                run.forward()
                output, loss = run.output, run.loss
                for _batch in run.validate(batches(2)):
                    assert not any(flags(run.module))
                    run.eval_step()
                    if leave:
                        break
                assert flags(run.module) == flags(frozen_model())
                assert run.backward()
                assert (run.stage, run.batch, run.output, run.loss) == ("train", batch, output, loss)
                assert run.step()
    assert same_weights(plain.model, nested.model)
    assert nested.clock.batches == 2


def test_requests_of_the_outer_iteration_survive_a_nested_pass():
    with make_trainer().run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(2)):
                run.hold_step()
                for _batch in run.validate(batches(2)):
                    run.end_epoch()
                    run.eval_step()
                assert run.train_step() is False
                assert run.skipped == {"step", "zero_grad"}
            assert run.clock.batches == 2


@pytest.mark.parametrize("request_", ["end_epoch", "stop"])
def test_a_request_after_a_broken_nested_pass_is_for_the_outer_one(request_):
    trainer = make_trainer()
    with trainer.run(epochs=1) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(3)):
                run.train_step()
                for _batch in run.validate(batches(2)):
                    break
                getattr(run, request_)()
    assert trainer.clock.batches == 1


def test_a_stop_in_a_nested_pass_ends_the_training_too():
    recorder = Recorder(["after_val_epoch", "after_train_iter", "after_step", "after_epoch", "after_run"])
    with make_trainer(recorder).run(epochs=2) as run:
        for _ in run.epochs():
            for _batch in run.train(batches(3)):
                for _batch in run.validate(batches(3)):
                    run.stop()
                run.train_step()
    assert recorder.trace == ["after_val_epoch", "after_step", "after_train_iter", "after_epoch", "after_run"]


def test_skip_validation_closes_the_loop_before_it_begins():
    with make_trainer(Ask("before_epoch", "skip_validation", lambda run: run.epoch == 0)).run(epochs=2) as run:
        seen = [len(list(run.validate(batches(2)))) for _ in run.epochs()]
    assert seen == [0, 2]


# Passes of callbacks ------------------------------------------------------------------------------------------------

FIELDS = ("batch", "output", "loss")
PLAYED = [
    name
    for name, point in POINTS.items()
    if point.kind in (Kind.BEFORE, Kind.AFTER)
    and not name.endswith(("test_epoch", "test_iter", "pred_epoch", "pred_iter"))
]


def seen(run) -> list[object]:
    fields = [getattr(run, name, None) for name in FIELDS]
    return [*fields, run.stage, run.loader_name, run.mode, *flags(run.module), *torch_modes()]


@pytest.mark.parametrize("point", PLAYED)
def test_a_pass_of_a_callback_plays_no_points_and_changes_nothing(point):
    data, called = batches(2), []

    def look(run):
        before, state = seen(run), torch.get_rng_state()
        outputs = run.predict(data)
        called.append(run.evaluate(data)["loss"])
        assert outputs.shape == (8, 3)
        assert all(was is now for was, now in zip(before, seen(run), strict=True))
        assert torch.equal(state, torch.get_rng_state())

    recorders = Recorder(), Recorder()
    plain = make_trainer(recorders[0], model=frozen_model())
    asking = make_trainer(recorders[1], Act(point, look, time=None), model=frozen_model())
    for trainer in (plain, asking):
        torch.manual_seed(0)
        trainer.fit(data, data, epochs=1)
    assert called
    assert recorders[0].trace == recorders[1].trace
    assert same_weights(plain.model, asking.model)
    assert plain.history.epochs == asking.history.epochs
