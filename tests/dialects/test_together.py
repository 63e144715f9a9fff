"""Callbacks of all four dialects and a native one in one run: order, requests and results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Callback as Native
from cadenza import Order
from cadenza.dialects import aitoolbox, fastai, orca, supergradients
from cadenza.dialects.adapter import Section
from cadenza.testing import tiny_classifier, tiny_loader

from .rooms import same, trainer_with, weights


class OwnNative(Native):
    def __init__(self, told: list[str]) -> None:
        self.told = told

    def before_train_iter(self, run: Any) -> None:
        self.told.append("native")

    def after_epoch(self, run: Any) -> None:
        self.told.append("native end")


class OfOrca(orca.Callback):
    def __init__(self, told: list[str]) -> None:
        self.told = told

    def before_train_iter(self, runner: Any) -> None:
        self.told.append("orca")

    def after_train_epoch(self, runner: Any) -> None:
        self.told.append(f"orca end {runner.epochs}")


class OfFastai(fastai.Callback):
    _order = -1

    def __init__(self, told: list[str]) -> None:
        self.told = told

    def on_batch_begin(self, train: bool, **kwargs: Any) -> None:
        if train:
            self.told.append("fastai")

    def on_backward_end(self, iteration: int, **kwargs: Any) -> Any:
        return {"skip_step": True} if iteration == 1 else None

    def on_epoch_end(self, epoch: int, **kwargs: Any) -> None:
        self.told.append(f"fastai end {epoch}")


class OfAIToolbox(aitoolbox.AbstractCallback):
    def __init__(self, told: list[str]) -> None:
        super().__init__("mine", execution_order=1)
        self.told = told

    def on_batch_begin(self) -> None:
        self.told.append("aitoolbox")

    def on_epoch_end(self) -> None:
        self.told.append(f"aitoolbox end {self.train_loop_obj.epoch}")
        if self.train_loop_obj.epoch == 1:
            self.train_loop_obj.early_stop = True


class OfSuperGradients(supergradients.Callback):
    def __init__(self, told: list[str], stop_at: int | None = None) -> None:
        self.told, self.stop_at = told, stop_at

    def on_train_batch_start(self, context: Any) -> None:
        self.told.append("supergradients")
        if self.stop_at == context.epoch:
            context.update_context(stop_training=True)

    def on_validation_loader_end(self, context: Any) -> None:
        self.told.append(f"supergradients end {context.epoch}")


def five(told: list[str], **options: Any) -> list[Any]:
    return [OfAIToolbox(told), OwnNative(told), OfSuperGradients(told, **options), OfOrca(told), OfFastai(told)]


IN_ORDER = ["fastai", "native", "supergradients", "orca", "aitoolbox"]
"""-1, three of the default place in the order of the list, and 1."""


def test_five_callbacks_in_one_run() -> None:
    told: list[str] = []
    trainer = trainer_with(*five(told))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=5)
    epochs = [
        [*IN_ORDER * 3, f"supergradients end {epoch}", f"fastai end {epoch}", "native end", f"orca end {epoch + 1}",
         f"aitoolbox end {epoch}"]
        for epoch in range(2)
    ]  # fmt: skip
    assert told == epochs[0] + epochs[1]  # AIToolbox's early stop ended the run after two of five epochs
    assert trainer.clock.epochs == 2
    assert trainer.clock.steps == 5  # fastai skipped one


def test_the_weights_are_those_of_a_loop_by_hand_with_one_step_left_out() -> None:
    trainer = trainer_with(*five([]))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=5)
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for index, (inputs, targets) in enumerate(tiny_loader()):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            if (epoch, index) != (0, 1):
                optimizer.step()
    assert same(weights(trainer.model), weights(model))


def test_a_stop_of_one_system_is_heard_by_all() -> None:
    told: list[str] = []
    trainer = trainer_with(*five(told, stop_at=1))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=5)
    assert told[: 15 + 5] == [*IN_ORDER * 3, *told[15:20]]
    assert trainer.clock.batches < 3 * 3


def test_each_dialect_has_one_section_and_the_main_callback_may_be_foreign() -> None:
    class Main(orca.MainCallback):
        def on_iter_forward(self, runner: Any) -> None:
            inputs, targets = runner.batch
            runner.output = runner.model(inputs)
            runner.loss = runner.criterion(runner.output, targets)

    told: list[str] = []
    trainer = trainer_with(*five(told), Main(), OfOrca(told))
    sections = [one for one in trainer.callbacks if isinstance(one, Section)]
    assert len(sections) == 4
    assert all(section.order < Order.PREPARE for section in sections)
    plain = trainer_with(*five([]))
    for each in (trainer, plain):
        each.fit(tiny_loader(), tiny_loader(8), epochs=2)
    assert same(weights(trainer.model), weights(plain.model))


def test_the_score_names_them_all() -> None:
    score = str(trainer_with(*five([])).explain())
    for name in ("OfOrca", "OfFastai", "mine", "OfSuperGradients", "OwnNative"):
        assert name in score


def test_an_error_of_one_ends_the_run_for_all() -> None:
    told: list[str] = []

    class Raises(OfOrca):
        def after_train_iter(self, runner: Any) -> None:
            raise ZeroDivisionError

    class Ends(fastai.Callback):
        def on_train_end(self, exception: Any, **kwargs: Any) -> None:
            told.append(f"fastai {type(exception).__name__}")

    class EndsToo(supergradients.Callback):
        def on_training_end(self, context: Any) -> None:
            told.append("supergradients")

    trainer = trainer_with(Raises([]), Ends(), EndsToo())
    with pytest.raises(ZeroDivisionError) as caught:
        trainer.fit(tiny_loader(), epochs=1)
    assert told == ["fastai ZeroDivisionError", "supergradients"]
    assert any("Raises at after_train_iter" in note for note in caught.value.__notes__)
