"""Steps that pass the run by are told, and steps that never come are not waited for."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from torch import nn
from torch.optim import SGD

from cadenza import Callback, MainCallback, Trainer
from cadenza.callbacks import Accumulate
from cadenza.testing import tiny_classifier, tiny_loader


def made(*callbacks: Callback) -> Trainer:
    model = tiny_classifier()
    return Trainer(model, SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def loop(trainer: Trainer, step: Any, **limits: int) -> None:
    with trainer.run(**limits) as run:
        for _ in run.epochs():
            for inputs, targets in run.train(tiny_loader()):
                run.loss = nn.functional.cross_entropy(run.model(inputs), targets)
                run.backward()
                step(run)


def by_hand(run: Any) -> None:
    run.optimizer.step()
    run.optimizer.zero_grad()


@pytest.mark.parametrize("step", [by_hand, lambda run: run.step_optimizer(run.optimizer)], ids=["torch", "one"])
def test_an_optimizer_that_is_stepped_past_the_run_is_told_once(step: Any) -> None:
    trainer = made()
    with pytest.warns(UserWarning, match=r"the weights have changed, but the run has made no step.*run\.step") as told:
        loop(trainer, step, epochs=3)
    assert [one.filename for one in told] == [__file__]
    assert trainer.clock.steps == 0


def test_a_loop_that_trains_nothing_on_purpose_is_left_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        idle, stepping = made(), made()
        loop(idle, lambda run: None, epochs=3)
        loop(stepping, lambda run: run.step(), epochs=2)
    assert idle.clock.steps == 0


class SkipAll(Callback):
    def before_step(self, run: Any) -> None:
        run.skip_step()


@pytest.mark.filterwarnings("ignore:Accumulate makes no step")
@pytest.mark.parametrize("callback", [SkipAll(), Accumulate(64, drop_last=True)], ids=["skipped", "dropped"])
def test_steps_that_are_never_made_are_not_waited_for(callback: Callback) -> None:
    trainer = made(callback)
    with pytest.raises(
        RuntimeError, match=r"10[0-9] batches in a row made no step, so the 5 steps would never be reached"
    ):
        trainer.fit(tiny_loader(), steps=5)
    assert trainer.fit(tiny_loader(), epochs=3) is trainer.history


def test_an_own_loop_that_counts_steps_and_makes_none() -> None:
    with pytest.warns(UserWarning, match="made no step"), pytest.raises(RuntimeError, match="would never be reached"):
        loop(made(), by_hand, steps=5)


def test_a_few_epochs_without_a_step_are_no_matter() -> None:
    """As those of one batch are, until a scaler has found its scale."""

    class SkipFirst(Callback):
        def before_step(self, run: Any) -> None:
            if run.epoch < 20:
                run.skip_step()

    trainer = made(SkipFirst())
    trainer.fit(list(tiny_loader())[:1], steps=5)
    assert trainer.clock.steps == 5
    assert trainer.clock.epochs >= 24


def in_verbs(trainer: Trainer, body: Any) -> None:
    with trainer.run(epochs=2) as run:
        for _ in run.epochs():
            for _batch in run.train(tiny_loader()):
                body(run)


def test_a_step_without_a_backward_is_told_once() -> None:
    with pytest.warns(UserWarning, match=r"run\.step\(\) finds no gradients.*call run\.backward\(\)") as told:
        in_verbs(made(), lambda run: (run.forward(), run.step()))
    assert [one.filename for one in told] == [__file__]


class OwnStep(MainCallback):
    def on_iter_step(self, run: Any) -> None:
        pass


class OwnBackward(MainCallback):
    def on_iter_backward(self, run: Any) -> None:
        run.loss.backward()
        by_hand(run)


class SkipBackward(Callback):
    def after_loss(self, run: Any) -> None:
        run.skip_backward()


def own_loss(run: Any) -> None:
    run.loss = nn.functional.cross_entropy(run.model(run.inputs), run.targets)
    run.loss.backward()
    run.step()


@pytest.mark.parametrize(
    ("callbacks", "body"),
    [
        ([OwnStep()], lambda run: (run.forward(), run.step())),
        ([], own_loss),
        *(([callback], None) for callback in (OwnBackward(), SkipBackward(), SkipAll(), Accumulate(2))),
    ],
    ids=["own step", "own loss", "own backward", "no backward", "no step", "held"],
)
def test_a_step_that_needs_no_gradients_or_has_them_is_left_alone(callbacks: list[Callback], body: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        in_verbs(made(*callbacks), body or (lambda run: (run.forward(), run.backward(), run.step())))
