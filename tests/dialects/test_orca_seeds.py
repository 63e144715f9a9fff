"""Every code block of Orca's tutorial, in both of its forms: examples run, listings and pseudo-code are held to."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Trainer
from cadenza.dialects.orca import DIALECT, Callback, MainCallBack, MainCallback, Runner
from cadenza.testing import tiny_classifier, tiny_loader

from .documents import Repair, examples, repaired, text_of
from .open_names import ORCA, Detector
from .rooms import same, trainer_with, weights
from .test_orca import recorder

TUTORIAL, SHORT = "orca-tutorial.txt", "orca-short.txt"
REPAIRS = (
    Repair("class MainCallback(Callback);", "class MainCallback(Callback):", "a class statement ends in a colon"),
)


def run(code: str, **names: Any) -> dict[str, Any]:
    space = {"Callback": Callback, "MainCallback": MainCallback, "MainCallBack": MainCallBack, **ORCA, **names}
    exec(compile(code, "example", "exec"), space)
    return space


def test_the_documents_have_the_blocks_that_are_tested_here() -> None:
    assert [block.split("\n")[0].strip() for block in examples(TUTORIAL)] == [
        "class Callback:",
        "class MainCallback(Callback);",
        "",  # the pseudo-code
        "loss_dict = model(images, targets)",
        "class CustomMainCB(MainCallBack):",
        "def adjust_learning_rate(optimizer, gamma, epoch, step_index, iteration, epoch_size):",
        "class CustomMainCB(MainCallBack):",
    ]
    assert examples(SHORT) == [*examples(TUTORIAL)[:3], examples(TUTORIAL)[4]]


# Listings ------------------------------------------------------------------------------------------------------------


def test_every_method_of_the_listed_callback_is_called() -> None:
    listed = [node.name for node in ast.walk(ast.parse(examples(TUTORIAL)[0])) if isinstance(node, ast.FunctionDef)]
    told: list[str] = []
    trainer_with(recorder(Callback, listed, told)).fit(tiny_loader(8), epochs=1)
    assert sorted(told) == sorted(listed)


def test_the_listed_main_callback_runs_and_is_bit_equal_to_ours() -> None:
    own = run(repaired(examples(TUTORIAL)[1], *REPAIRS))["MainCallback"]
    assert own is not MainCallback
    assert issubclass(own, Callback)

    class Listed(MainCallback):
        """The bodies as the document lists them."""

    for name in ("on_iter_forward", "on_iter_backward", "on_lr_adjust", "on_train_forward", "on_val_forward"):
        setattr(Listed, name, vars(own)[name])

    def trained(main: MainCallback) -> list[torch.Tensor]:
        model = tiny_classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), scheduler=schedule, callbacks=[main], device="cpu")
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=3)
        assert trainer.clock.steps == 9
        return weights(model)

    assert same(trained(Listed()), trained(MainCallback()))


def test_every_listed_point_is_a_hook_and_those_with_a_star_are_the_main_callbacks() -> None:
    lines = [line for line in text_of(TUTORIAL).splitlines() if re.match(r"\* \w+ points:", line)]
    assert len(lines) == 4
    named = re.findall(r"(\*?)`(\w+)`", "\n".join(lines))
    assert len(named) == 23
    hooks = {row.name for row in DIALECT.hooks}
    for star, name in named:
        assert name in hooks
        assert hasattr(Callback, name) is not bool(star)


def test_the_attributes_that_the_tutorial_lists_are_there() -> None:
    section = text_of(TUTORIAL).split("### What attributes user can access")[1].split("## Callback Usage")[0]
    always, inside = (re.findall(r"^\* (\w+):", part, re.MULTILINE) for part in section.split("Can be accessed within"))
    assert (len(always), inside) == (9, ["batch", "batch_idx", "output", "loss"])
    seen = []

    class Look(Callback):
        def before_run(self, runner: Runner) -> None:
            for name in always:
                getattr(runner, name)
            for name in inside:
                with pytest.raises(AttributeError):
                    getattr(runner, name)

        def after_train_iter(self, runner: Runner) -> None:
            seen.append([getattr(runner, name) is not None for name in inside])

    trainer_with(Look()).fit(tiny_loader(8), epochs=1)
    assert seen == [[True] * 4]


# Pseudo-code ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [TUTORIAL, SHORT])
def test_the_order_of_the_pseudo_code(document: str) -> None:
    code = examples(document)[2]
    order = re.findall(r'call_hooks\("(\w+)"', code)
    assert order == [
        *("on_run_begin", "on_epoch_begin", "on_iter_begin", "on_iter_forward", "on_iter_backward", "on_iter_end"),
        *("on_lr_adjust", "on_epoch_end", "on_run_end"),
    ]
    told: list[str] = []
    trainer_with(recorder(MainCallback, order, told)).fit(tiny_loader(8), epochs=1)
    assert told == order
    deleted = re.findall(r"del self\.(\w+)", code)
    assert deleted == ["batch", "batch_idx", "outputs", "loss"]

    class Look(Callback):
        def on_iter_begin(self, runner: Runner) -> None:
            for name in ("outputs", "loss"):
                assert not hasattr(runner, name)

        def on_epoch_end(self, runner: Runner) -> None:
            for name in deleted:
                assert not hasattr(runner, name)

    trainer_with(Look()).fit(tiny_loader(), epochs=2)


# Examples ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [examples(TUTORIAL)[4], examples(SHORT)[3]], ids=["tutorial", "short"])
def test_usage_1_losses_that_the_model_computes(code: str) -> None:
    """ "Calculate the loss inside the model": the two lines before it, and the callback that puts them into a run."""
    model = Detector()
    trainer = trainer_with(run(code)["CustomMainCB"](), model=model)
    history = trainer.fit(tiny_loader(), tiny_loader(8), epochs=2)
    by_hand = Detector()
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for _ in range(2):
        for images, targets in tiny_loader():
            losses = run(examples(TUTORIAL)[3], model=by_hand, images=images, targets=targets)["losses"]
            optimizer.zero_grad()
            losses.backward()
            optimizer.step()
    assert same(weights(model), weights(by_hand))
    assert len(history["val/loss"]) == 2


def test_the_learning_rate_by_hand_of_usage_2() -> None:
    """The function that the callback is to replace; ``warmup_epoch`` is -1 in it, so it never warms up."""
    adjust = run(examples(TUTORIAL)[5])["adjust_learning_rate"]
    optimizer = torch.optim.SGD(tiny_classifier().parameters(), lr=1.0)
    assert adjust(optimizer, 0.5, 0, 2, 7, 3) == pytest.approx(0.1 * 0.5**2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**2)


def test_usage_2_adjusts_the_learning_rate_in_each_iteration() -> None:
    """ "User manually adjusts the learning rate without the help of the scheduler", by the number of the batch: linear
    in the first epochs, and by powers of gamma after them. The original could not do it."""
    seen: list[float] = []

    class Look(Callback):
        def after_train_iter(self, runner: Runner) -> None:
            seen.append(runner.optimizer.param_groups[0]["lr"])

    trainer_with(run(examples(TUTORIAL)[6])["CustomMainCB"](), Look()).fit(tiny_loader(), epochs=7)
    warm = [1e-6 + (0.1 - 1e-6) * index / (3 * 5) for index in range(3)]
    assert seen == pytest.approx(warm * 6 + [0.1 * 0.5**2] * 3)
