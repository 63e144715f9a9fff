"""Where Orca's ``on_lr_adjust`` is called, and helpers that users write beside the main callback's methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cadenza import Trainer
from cadenza.callbacks import GradientClip
from cadenza.dialects.orca import MainCallback, Runner
from cadenza.engine.fields import FieldError
from cadenza.testing import tiny_classifier, tiny_loader

from .rooms import same, trainer_with, weights


def rate_of(runner: Runner) -> float:
    return 0.1 / (1 + runner.batch_idx)


def test_a_field_in_a_function_inside_counts_as_named() -> None:
    class Adjusts(MainCallback):
        calls = 0

        def on_lr_adjust(self, runner: Runner) -> None:
            type(self).calls += 1
            rates = (0.1 / (1 + runner.batch_idx) for _ in range(1))
            runner.optimizer.param_groups[0]["lr"] = next(rates)

    trainer_with(Adjusts()).fit(tiny_loader(24, 8), epochs=2)
    assert Adjusts.calls == 6


def test_a_field_that_only_a_helper_names_says_what_to_do() -> None:
    class Adjusts(MainCallback):
        def on_lr_adjust(self, runner: Runner) -> None:
            runner.optimizer.param_groups[0]["lr"] = rate_of(runner)

    with pytest.raises(FieldError) as caught:
        trainer_with(Adjusts()).fit(tiny_loader(), epochs=1)
    assert any("Name batch_idx" in note for note in caught.value.__notes__)


def test_without_a_loss_the_default_forward_says_so() -> None:
    model = tiny_classifier()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[MainCallback()], device="cpu")
    with pytest.raises(TypeError, match=r"^orca: there is no loss.*on_iter_forward that sets runner\.loss"):
        trainer.fit(tiny_loader(), epochs=1)


def test_who_comes_too_late_for_an_own_step_is_told_in_the_words_of_the_dialect() -> None:
    class Steps(MainCallback):
        def on_iter_backward(self, runner: Runner) -> None:
            runner.optimizer.zero_grad()
            runner.loss.backward()  # type: ignore[no-untyped-call]
            runner.optimizer.step()

    with pytest.raises(RuntimeError, match=r"too late\. orca: do it in on_iter_backward itself"):
        trainer_with(Steps(), GradientClip(norm=1.0)).fit(tiny_loader(), epochs=1)


def test_helpers_of_the_users_own_do_not_replace_the_defaults() -> None:
    class Helped(MainCallback):
        def forward(self, model: Any, images: Any) -> Any:
            return model(images)

        def compute_loss(self, outputs: Any, targets: Any, weight: float) -> Any:
            return torch.nn.functional.cross_entropy(outputs, targets) * weight

        def on_val_forward(self, runner: Runner) -> None:
            images, targets = runner.batch
            runner.output = self.forward(runner.model, images)
            runner.loss = self.compute_loss(runner.output, targets, 2.0)

    plain, helped = trainer_with(MainCallback()), trainer_with(Helped())
    for trainer in (plain, helped):
        trainer.fit(tiny_loader(), tiny_loader(), epochs=1)
    assert same(weights(plain.model), weights(helped.model))
    assert helped.history["val/loss"][-1] == pytest.approx(2 * plain.history["val/loss"][-1])
