"""A backward that steps by itself, and steps that evaluate their batch again: what they are, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from tests.engine.scenarios import Act, Ask, batches, fail, make_trainer, same_weights

from cadenza import MainCallback
from cadenza.testing import Recorder


class StepsItself(MainCallback):
    def on_iter_backward(self, run):
        run.optimizer.zero_grad()
        run.loss.backward()
        run.optimizer.step()


@pytest.mark.parametrize(
    ("late", "told"),
    [
        (Act("before_step", fail), "Act at before_step"),
        (Ask("before_forward", "hold_step"), "hold"),
        (Ask("after_backward", "hold_step"), "hold"),
        (Ask("before_forward", "skip_step"), "skip_step|Ask"),
        (Ask("after_backward", "skip_step"), "skip_step|Ask"),
    ],
    ids=["a clip", "hold", "late hold", "skip_step", "late skip_step"],
)
def test_who_comes_too_late_for_a_backward_that_steps_ends_the_run(late, told):
    trainer = make_trainer(StepsItself(), Act(late.point, late.act))
    with pytest.raises(RuntimeError, match=f"StepsItself.*({told})"):
        trainer.fit(batches(2), epochs=1)
    assert trainer.clock.batches == 0


def test_a_backward_that_steps_is_the_loop_written_by_hand():
    trainer, other, data = make_trainer(StepsItself()), make_trainer(), batches(3)
    trainer.fit(data, epochs=2)
    optimizer = other._training.optimizers[0]
    for inputs, targets in data * 2:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(other.model(inputs), targets).backward()
        optimizer.step()
    assert same_weights(trainer.model, other.model)
    assert trainer.clock.steps == 6


class Sharp(MainCallback):
    """The step of sharpness-aware minimisation: up along the gradient, a second gradient there, down from below."""

    def on_iter_step(self, run):
        sharpen(run.module, run.recompute, run.optimizer.step)


def sharpen(model, evaluate_again, step) -> None:
    with torch.no_grad():
        moves = [0.05 * parameter.grad for parameter in model.parameters()]
        for parameter, move in zip(model.parameters(), moves, strict=True):
            parameter.add_(move)
    evaluate_again()
    with torch.no_grad():
        for parameter, move in zip(model.parameters(), moves, strict=True):
            parameter.sub_(move)
    step()


def test_a_batch_played_again_is_the_loop_written_by_hand():
    recorder = Recorder(["before_forward", "after_backward", "before_step", "after_step", "after_zero_grad"])
    trainer, other, data = make_trainer(Sharp(), recorder), make_trainer(), batches(2)
    trainer.fit(data, epochs=1)
    optimizer = other._training.optimizers[0]
    for inputs, targets in data:

        def evaluate(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(other.model(inputs), targets).backward()

        evaluate()
        sharpen(other.model, evaluate, optimizer.step)
    assert same_weights(trainer.model, other.model)
    again = ["after_zero_grad", "before_forward", "after_backward"]
    assert recorder.trace[:7] == ["before_forward", "after_backward", "before_step", *again, "after_step"]
    assert trainer.clock.steps == 2


def test_requests_are_taken_again_after_a_batch_was_played_again():
    trainer = make_trainer(Sharp())
    trainer.on("before_forward")(lambda run: run.skip_batch() if run.batch_idx == 1 else None)
    trainer.fit(batches(3), epochs=1)
    assert (trainer.clock.batches, trainer.clock.steps) == (3, 2)


def lbfgs(parameters):
    return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3, max_eval=6)


def test_a_step_with_closure_is_the_one_written_by_hand():
    trainer, data, seen = make_trainer(optimizer=lbfgs), batches(2), []
    trainer.add(Act("after_loss", lambda run: seen.append(run.loss), time=None))
    trainer.add(Act("after_step", lambda run: seen.append(("again", run.loss is seen[-1], run.loss is seen[0]))))
    trainer.fit(data, epochs=1)
    model = make_trainer().model
    optimizer = lbfgs(model.parameters())
    for inputs, targets in data:

        def closure(inputs=inputs, targets=targets):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert same_weights(trainer.model, model)
    assert ("again", False, True) in seen
    assert trainer.clock.steps == 2


def test_what_cannot_be_met_with_a_closure_is_refused():
    with pytest.raises(RuntimeError, match="LBFGS"):
        make_trainer(Ask("before_forward", "hold_step"), optimizer=lbfgs).fit(batches(2), epochs=1)
    second = Act("before_forward", lambda run: run.skip_batch(), time=1)
    with pytest.raises(RuntimeError, match="again"):
        make_trainer(second, optimizer=lbfgs).fit(batches(2), epochs=1)


def test_a_batch_cannot_be_played_again_when_gradients_are_held_from_others() -> None:
    trainer = make_trainer()
    trainer.on("before_forward")(lambda run: run.hold_step() if run.batch_idx == 0 else None)
    trainer.on("before_step")(lambda run: run.recompute())
    with pytest.raises(RuntimeError, match="held from earlier batches"):
        trainer.fit(batches(3), epochs=1)


def test_a_backward_of_ones_own_may_set_the_loss() -> None:
    class Own(MainCallback):
        def on_iter_backward(self, run):
            run.loss = run.loss * 2
            run.loss.backward()

    plain, doubled = make_trainer(), make_trainer(Own())
    plain.fit(batches(2), epochs=1)
    history = doubled.fit(batches(2), epochs=1)
    seen = []
    again = make_trainer(Own())
    again.on("after_backward")(lambda run: seen.append(run.loss.item()))
    again.fit(batches(2), epochs=1)
    assert history["train/loss"][0] == pytest.approx(sum(seen) / 2)
