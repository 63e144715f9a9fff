"""Phases by enum or name, and what the context takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cadenza import CallbackError, Watch
from cadenza.dialects.supergradients import Callback, Phase, PhaseCallback, PhaseContext, Trainer
from cadenza.dialects.supergradients.phases import METHOD
from cadenza.testing import tiny_classifier, tiny_loader

from .test_supergradients_order import PARAMS, Recording, loader, plain_trainer

# Phases and the context -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("by_name", [False, True])
def test_a_phase_callback_is_called_at_its_phase(phase: Phase, by_name: bool) -> None:
    order: list[str] = []

    class Here(PhaseCallback):
        def __call__(self, context: PhaseContext) -> None:
            order.append("phase")

    recording = Recording(lambda method, context: order.append("method") if method == METHOD[phase] else None)
    trainer = plain_trainer(Watch("val/loss"), Here(phase.name if by_name else phase), recording)
    trainer.fit(tiny_loader(8), tiny_loader(8), epochs=1, test_loaders=tiny_loader(8))
    assert order == ["phase", "method"]


def test_a_phase_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"supergradients: 'TRAIN_EPOCH' is no phase; did you mean Phase.TRAIN_EPOCH_"):
        PhaseCallback("TRAIN_EPOCH")


def test_further_items_of_a_batch_are_attributes(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Look(Callback):
        def on_train_batch_end(self, context: PhaseContext) -> None:
            seen.append((context.additional_batch_items["weight"], context.weight, context.target.tolist()))

    batches = [(torch.randn(2, 4), torch.tensor([0, 1]), {"weight": 0.5})]
    Trainer("mine", str(tmp_path)).train(
        tiny_classifier(), {**PARAMS, "max_epochs": 1, "phase_callbacks": [Look()]}, batches, batches
    )
    assert seen == [(0.5, 0.5, [0, 1])]


def test_what_callbacks_put_into_the_context_others_see() -> None:
    seen: list[Any] = []

    class Writes(Callback):
        def on_train_loader_start(self, context: PhaseContext) -> None:
            context.update_context(mood="good")

    class Reads(Callback):
        def on_train_loader_start(self, context: PhaseContext) -> None:
            seen.append(context.mood)

    plain_trainer(Writes(), Reads()).fit(loader(), epochs=1)
    assert seen == ["good"]


def test_what_is_not_there_is_refused_with_the_nearest() -> None:
    def read(method: str, context: PhaseContext) -> None:
        context.metric_dict

    with pytest.raises(AttributeError, match=r"supergradients: there is no attribute 'metric_dict'.*'metrics_dict'"):
        plain_trainer(Recording(read)).fit(loader(), epochs=1)

    seen = []

    def write(method: str, context: PhaseContext) -> None:
        context.stop_trainings = True  # the user's own
        seen.append(context.stop_training)

    plain_trainer(Recording(write)).fit(loader(), epochs=1)
    assert seen
    assert not any(seen)


def test_a_method_that_is_none_is_refused() -> None:
    class Old(Callback):
        def on_epoch_end(self, context: PhaseContext) -> None: ...

    with pytest.raises(CallbackError, match=r"supergradients: there is no hook 'on_epoch_end' here"):
        plain_trainer(Old())


def test_one_callback_in_place_of_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="phase_callbacks is a list, not Recording"):
        Trainer("mine", str(tmp_path)).train(tiny_classifier(), {**PARAMS, "phase_callbacks": Recording()}, loader())
