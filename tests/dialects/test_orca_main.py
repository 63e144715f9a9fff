"""Orca's main callback: forward, backward and the learning rate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import cadenza
from cadenza import CallbackError, Trainer
from cadenza.callbacks import GradientClip
from cadenza.dialects.orca import Callback, MainCallBack, MainCallback, Runner, make_only_mainCallback
from cadenza.testing import tiny_classifier, tiny_loader

from .rooms import same, trainer_with, weights

# The main callback ---------------------------------------------------------------------------------------------------


def by_hand(epochs: int = 2, **options: Any) -> nn.Module:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) if options.get("scheduler") else None
    for _ in range(epochs):
        for inputs, targets in tiny_loader():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return model


def test_the_defaults_are_those_of_a_loop_by_hand() -> None:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    Trainer(model, optimizer, nn.CrossEntropyLoss(), scheduler=scheduler, callbacks=[MainCallback()], device="cpu").fit(
        tiny_loader(), epochs=2
    )
    assert same(weights(model), weights(by_hand(scheduler=True)))


def test_lists_are_spread_over_the_criterion() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_classifier()

        def forward(self, first: Any, second: Any) -> Any:
            return [self.inner(first), self.inner(second)]

    seen = []

    def criterion(a: Any, b: Any, x: Any, y: Any) -> Any:
        seen.append((a.shape, b.shape, x.shape, y.shape))
        return nn.functional.cross_entropy(a, x) + nn.functional.cross_entropy(b, y)

    model = Two()
    batch = [torch.randn(5, 4), torch.randn(5, 4), [torch.zeros(5).long(), torch.ones(5).long()]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, optimizer, criterion, callbacks=[MainCallback()], device="cpu")
    trainer.fit([batch], epochs=1)
    assert seen == [((5, 3), (5, 3), (5,), (5,))]


def test_only_the_first_optimizer_and_scheduler_are_stepped_by_default() -> None:
    model = tiny_classifier()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)  # type: ignore[index]
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)  # type: ignore[index]
    before = weights(model)
    trainer = Trainer(model, [first, second], nn.CrossEntropyLoss(), callbacks=[MainCallback()], device="cpu")
    trainer.fit(tiny_loader(), epochs=1)
    after = weights(model)
    assert not torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])


def test_backward_in_one_is_bit_equal_and_counts_steps() -> None:
    class InOne(MainCallback):
        def on_iter_backward(self, runner: Runner) -> None:
            runner.optimizer.zero_grad()
            runner.loss.backward()  # type: ignore[no-untyped-call]
            runner.optimizer.step()

    trainer = trainer_with(InOne())
    trainer.fit(tiny_loader(), epochs=2)
    assert same(weights(trainer.model), weights(by_hand()))
    assert trainer.clock.steps == 6


def test_accumulation_as_users_wrote_it() -> None:
    class Accumulate(MainCallback):
        def on_iter_backward(self, runner: Runner) -> None:
            (runner.loss / 2).backward()  # type: ignore[no-untyped-call]
            if (runner.batch_idx + 1) % 2 == 0:
                runner.optimizer.step()
                runner.optimizer.zero_grad()

    trainer = trainer_with(Accumulate())
    trainer.fit(tiny_loader(), epochs=2)  # three batches: the last one of an epoch is carried into the next
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for index, (inputs, targets) in enumerate(tiny_loader()):
            (nn.functional.cross_entropy(model(inputs), targets) / 2).backward()
            if (index + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    assert same(weights(trainer.model), weights(model))
    assert trainer.clock.steps == 2


def test_a_native_clip_stands_between_the_default_backward_and_step() -> None:
    trainer = trainer_with(MainCallback(), GradientClip(norm=1e-3))
    before = weights(trainer.model)
    trainer.fit(tiny_loader(8), epochs=1)
    moved = sum((a - b).pow(2).sum() for a, b in zip(before, weights(trainer.model), strict=True)) ** 0.5
    assert moved == pytest.approx(1e-4, rel=1e-3)


def test_there_is_exactly_one_main_callback() -> None:
    with pytest.raises(CallbackError, match="exactly one MainCallback"):
        trainer_with(MainCallback(), MainCallBack())
    with pytest.raises(CallbackError, match="exactly one MainCallback"):
        trainer_with(MainCallback(), cadenza.MainCallback())
    assert MainCallBack is MainCallback


def test_a_plain_callback_with_a_behaviour_is_refused() -> None:
    class Sneaks(Callback):
        def on_iter_backward(self, runner: Runner) -> None: ...

    with pytest.raises(CallbackError, match=r"orca: Sneaks\.on_iter_backward belongs to the main callback"):
        trainer_with(Sneaks())


def test_the_main_callback_plays_first_and_the_others_keep_their_order() -> None:
    told: list[str] = []

    def named(base: type[Callback], name: str) -> Any:
        return type(name, (base,), {"before_train_iter": lambda self, runner: told.append(name)})()

    callbacks = [named(Callback, "A"), named(Callback, "B"), named(MainCallback, "Main")]
    trainer_with(*callbacks).fit(tiny_loader(8), epochs=1)
    assert told == ["Main", "A", "B"]
    assert [type(one).__name__ for one in make_only_mainCallback(callbacks)] == ["Main", "A", "B"]
    assert [type(one).__name__ for one in callbacks] == ["A", "B", "Main"]
    with pytest.raises(ValueError, match="Main and Main are main callbacks"):
        make_only_mainCallback([named(MainCallback, "Main"), named(MainCallback, "Main")])


def test_lr_is_adjusted_once_an_epoch_before_validation() -> None:
    told: list[str] = []

    class Adjust(MainCallback):
        def on_lr_adjust(self, runner: Runner) -> None:
            told.append(f"adjust {runner.epochs}")

        def before_val_epoch(self, runner: Runner) -> None:
            told.append("validation")

    trainer_with(Adjust()).fit(tiny_loader(), tiny_loader(8), epochs=2)
    assert told == ["adjust 0", "validation", "adjust 1", "validation"]


@pytest.mark.parametrize("field", ["batch_idx", "batch", "output", "outputs", "loss"])
def test_an_adjustment_that_names_an_iteration_field_is_made_in_each_iteration(field: str) -> None:
    told: list[Any] = []
    names: dict[str, Any] = {"MainCallback": MainCallback, "told": told}
    exec(
        "class Adjust(MainCallback):\n"
        "    def on_lr_adjust(self, runner):\n"
        f"        told.append(('adjust', runner.{field} is not None))\n"
        "    def after_train_iter(self, runner):\n"
        "        told.append('after')\n",
        names,
    )
    trainer_with(names["Adjust"]()).fit(tiny_loader(16), epochs=1)
    assert told == [("adjust", True), "after"] * 2


def test_a_plateau_schedule_is_stepped_after_validation() -> None:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    told = []

    class Look(Callback):
        def after_train_epoch(self, runner: Runner) -> None:
            told.append(plateau.last_epoch)

    Trainer(
        model, optimizer, nn.CrossEntropyLoss(), scheduler=plateau, callbacks=[MainCallback(), Look()], device="cpu"
    ).fit(tiny_loader(8), tiny_loader(8), epochs=3)
    assert told == [1, 2, 3]
    assert plateau.num_bad_epochs == 0  # it saw that the loss stood still, and reduced
