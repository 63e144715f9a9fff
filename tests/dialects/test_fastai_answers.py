"""What fastai callbacks return: replacements, flags and skips."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Callback as Native
from cadenza.dialects.fastai import Callback
from cadenza.testing import tiny_classifier, tiny_loader

from .documents import trace
from .rooms import same, trainer_with, weights
from .test_fastai import flagged, names_of, recorder

# What is returned ----------------------------------------------------------------------------------------------------


def test_input_target_output_and_loss_are_replaced() -> None:
    seen: list[Any] = []

    class Look(Native):
        stages = {"train"}

        def before_forward(self, run: Any) -> None:
            seen.append((run.inputs.abs().sum().item(), run.targets.tolist()))

        def before_loss(self, run: Any) -> None:
            seen.append(run.output.tolist())

        def after_backward(self, run: Any) -> None:
            seen.append(run.loss.item())

    zeros = {
        "on_batch_begin": lambda v: {"last_input": v["last_input"] * 0, "last_target": v["last_target"] * 0},
        "on_loss_begin": lambda v: {"last_output": v["last_output"] * 0},
        "on_backward_begin": lambda v: {"last_loss": v["last_loss"] * 3},
    }
    trainer = trainer_with(recorder([], zeros), Look())
    trainer.fit(tiny_loader(2, batch_size=2), epochs=1)
    three = 3 * float(nn.functional.cross_entropy(torch.zeros(2, 3), torch.zeros(2).long()))
    assert seen == [(0.0, [0, 0]), [[0.0] * 3] * 2, pytest.approx(three)]


def test_the_returned_loss_is_what_is_back_propagated() -> None:
    scaled = trainer_with(recorder([], {"on_backward_begin": lambda v: {"last_loss": v["last_loss"] * 2}}), lr=0.1)
    plain = trainer_with(lr=0.2)
    for trainer in (scaled, plain):
        trainer.fit(tiny_loader(), epochs=1)
    pairs = zip(weights(scaled.model), weights(plain.model), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_a_later_callback_sees_what_an_earlier_one_returned() -> None:
    first: list[Any] = []
    second: list[Any] = []
    double = {"on_batch_begin": lambda v: {"last_input": v["last_input"] * 2}}
    trainer_with(recorder(first, double), recorder(second)).fit(tiny_loader(8), epochs=1)
    before = next(v for name, v in first if name == "on_batch_begin")["last_input"]
    after = next(v for name, v in second if name == "on_batch_begin")["last_input"]
    assert torch.equal(after, before * 2)
    assert next(v for name, v in first if name == "on_batch_end")["last_input"] is after


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValueError, match="stop_trainning isn't a valid key in the state of the callbacks; the nearest"):
        trainer_with(recorder([], {"on_batch_end": {"stop_trainning": True}})).fit(tiny_loader(8), epochs=1)
    with pytest.raises(TypeError, match=r"Recorder\.on_batch_end returned 3; a hook returns a dict"):
        trainer_with(recorder([], {"on_batch_end": 3})).fit(tiny_loader(8), epochs=1)


def fit_with(answers: dict[str, Any], epochs: int = 3) -> tuple[list[Any], Any, bool]:
    told: list[Any] = []
    trainer = trainer_with(recorder(told, answers))
    before = weights(trainer.model)
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=epochs)
    return told, trainer, same(before, weights(trainer.model))


def test_stop_training_at_the_end_of_an_epoch_or_before() -> None:
    for event in ("on_epoch_end", "on_batch_end", "on_batch_begin"):
        told, _, _ = fit_with({event: {"stop_training": True}})
        assert names_of(told).count("on_epoch_end") == 1, event
        assert names_of(told).count("on_batch_begin") == 4
        assert names_of(told)[-1] == "on_train_end"


def test_stop_epoch_ends_the_loader_loop() -> None:
    told, trainer, _ = fit_with({"on_batch_end": lambda v: {"stop_epoch": v["train"]}})
    assert trainer.clock.batches == 3  # one batch in each of three epochs, as was observed of the original
    assert names_of(told).count("on_epoch_end") == 3


def test_skip_validate_leaves_the_validation_out() -> None:
    told, trainer, _ = fit_with({"on_train_begin": {"skip_validate": True}})
    assert "val/loss" not in trainer.history
    assert [v["last_metrics"] for name, v in told if name == "on_epoch_end"] == [[None]] * 3
    told, trainer, _ = fit_with({"on_batch_end": lambda v: {"skip_validate": v["epoch"] == 1}})
    assert len(trainer.history["val/loss"]) == 2


@pytest.mark.parametrize(
    ("event", "flags", "unchanged"),
    [
        ("on_backward_begin", {"skip_bwd": True}, True),
        ("on_batch_begin", {"skip_bwd": True}, True),
        ("on_backward_end", {"skip_step": True}, True),
        ("on_batch_begin", {"skip_step": True}, True),
        ("on_backward_end", {"skip_step": True, "skip_zero": True}, True),
        ("on_step_end", {"skip_zero": True}, False),
        ("on_backward_end", {"skip_zero": True}, False),
    ],
)
def test_skips_and_every_hook_of_the_original_is_still_called(event: str, flags: Any, unchanged: bool) -> None:
    told, _, same_weights = fit_with({event: flags})
    assert same_weights is unchanged
    assert flagged(told)[:8] == trace("fastai1-fit-validate.txt")[:8]
    assert names_of(told).count("on_step_end") == names_of(told).count("on_backward_end") == 9


def test_skip_zero_keeps_the_gradients_and_skip_step_drops_them() -> None:
    seen: list[Any] = []

    class Look(Native):
        def after_train_iter(self, run: Any) -> None:
            seen.append(next(run.module.parameters()).grad is not None)

    for flags in ({"skip_step": True}, {"skip_step": True, "skip_zero": True}, {"skip_zero": True}):
        trainer_with(recorder([], {"on_backward_end": flags}), Look()).fit(tiny_loader(8), epochs=1)
    assert seen == [False, True, True]


def test_accumulation_is_that_of_a_loop_by_hand() -> None:
    """Held gradients are not stepped at the end of an epoch, unless the callback does it, as in the original."""

    class Every2(Callback):
        def on_backward_end(self, iteration: int, **kwargs: Any) -> Any:
            return {"skip_step": True, "skip_zero": True} if iteration % 2 == 0 else None

    trainer = trainer_with(Every2())
    trainer.fit(tiny_loader(), epochs=2)
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    iteration = 0
    for _ in range(2):
        for inputs, targets in tiny_loader():
            nn.functional.cross_entropy(model(inputs), targets).backward()
            if iteration % 2:
                optimizer.step()
                optimizer.zero_grad()
            iteration += 1
    assert same(weights(trainer.model), weights(model))


def test_an_epoch_returned_at_the_begin_is_jumped_to() -> None:
    told: list[Any] = []
    jumps = []

    class Jumps(Callback):
        def jump_to_epoch(self, epoch: int) -> None:
            jumps.append(epoch)

    trainer = trainer_with(recorder(told, {"on_train_begin": {"epoch": 2}}), Jumps())
    trainer.fit(tiny_loader(8), epochs=5)
    assert jumps == [2]
    assert [v["epoch"] for name, v in told if name == "on_epoch_end"] == [2, 3, 4]
