"""The short way to step an optimizer: what torch wraps around ``step`` is left out only if nobody would notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from cadenza import MainCallback, Trainer
from cadenza.testing import Recorder, tiny_classifier, tiny_loader


def trainer_with(optimizer: torch.optim.Optimizer, model: torch.nn.Module, *, opened: bool, **more: object) -> Trainer:
    callbacks = [Recorder()] if opened else []
    return Trainer(model, optimizer, torch.nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", **more)


@pytest.fixture
def _no_hooks_left() -> Iterator[list[RemovableHandle]]:
    handles: list[RemovableHandle] = []
    yield handles
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("opened", [False, True], ids=["bare", "opened"])
@pytest.mark.parametrize("where", ["own", "global"])
def test_hooks_are_called(opened: bool, where: str, _no_hooks_left: list[RemovableHandle]) -> None:  # noqa: PT019
    model, called = tiny_classifier(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks = (lambda *_: called.append("before")), (lambda *_: called.append("after"))
    if where == "own":
        handles = optimizer.register_step_pre_hook(hooks[0]), optimizer.register_step_post_hook(hooks[1])
    else:
        handles = register_optimizer_step_pre_hook(hooks[0]), register_optimizer_step_post_hook(hooks[1])
    _no_hooks_left.extend(handles)
    trainer_with(optimizer, model, opened=opened).fit(tiny_loader(), epochs=1)
    assert called == ["before", "after"] * 3


@pytest.mark.parametrize("opened", [False, True], ids=["bare", "opened"])
def test_a_hook_that_comes_later_is_called_from_then_on(opened: bool) -> None:
    model, called = tiny_classifier(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = trainer_with(optimizer, model, opened=opened)

    def register(run: object) -> None:
        optimizer.register_step_pre_hook(lambda *_: called.append(trainer.clock.steps))

    trainer.fit(tiny_loader(), epochs=1)
    trainer.on("before_run")(register)
    trainer.fit(tiny_loader(), epochs=1)
    assert called == [3, 4, 5]


@pytest.mark.parametrize("opened", [False, True], ids=["bare", "opened"])
def test_a_profiler_sees_the_step(opened: bool) -> None:
    model = tiny_classifier()
    trainer = trainer_with(torch.optim.SGD(model.parameters(), lr=0.1), model, opened=opened)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        trainer.fit(tiny_loader(), epochs=1)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["Optimizer.step#SGD.step"] == 3


@pytest.mark.parametrize("opened", [False, True], ids=["bare", "opened"])
def test_a_step_of_the_instance_is_called(opened: bool) -> None:
    model, called = tiny_classifier(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = optimizer.step
    optimizer.step = lambda *args: (called.append("step"), own(*args))[1]  # type: ignore[method-assign]
    trainer_with(optimizer, model, opened=opened).fit(tiny_loader(), epochs=1)
    assert called == ["step"] * 3


@pytest.mark.parametrize("opened", [False, True], ids=["bare", "opened"])
def test_a_scheduler_sees_that_the_optimizer_stepped(opened: bool) -> None:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    trainer_with(optimizer, model, opened=opened, scheduler=scheduler).fit(tiny_loader(), epochs=2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)  # a warning would have been an error here


class Own(torch.optim.SGD):
    """An optimizer of the user's own, with a step that counts."""

    steps = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        type(self).steps += 1
        super().step()


def test_an_optimizer_of_ones_own_is_stepped_as_it_is() -> None:
    model = tiny_classifier()
    trainer_with(Own(model.parameters(), lr=0.1), model, opened=False).fit(tiny_loader(), epochs=1)
    other = tiny_classifier()
    plain = torch.optim.SGD(other.parameters(), lr=0.1)
    trainer_with(plain, other, opened=False).fit(tiny_loader(), epochs=1)
    assert Own.steps == 3
    assert torch.equal(model[0].weight, other[0].weight)


def test_a_main_callback_that_steps_by_hand_is_not_passed_over() -> None:
    class Mine(MainCallback):
        def on_iter_step(self, run: object) -> None:
            called.append("step")
            super().on_iter_step(run)

    model, called = tiny_classifier(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Trainer(model, optimizer, torch.nn.CrossEntropyLoss(), callbacks=[Mine()], device="cpu").fit(
        tiny_loader(), epochs=1
    )
    assert called == ["step"] * 3
