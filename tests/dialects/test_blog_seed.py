"""Every code block of the blog: the plain loop, the interface, the loop with callbacks, and its five examples."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Callback as Native
from cadenza.dialects.fastai import DIALECT, Callback
from cadenza.testing import tiny_classifier, tiny_loader

from .documents import Repair, examples, repaired
from .open_names import BLOG, fct
from .rooms import same, trainer_with, weights

BLOCKS = examples("callbacks-blog.txt")
CLASS = Repair("def Callback():", "class Callback:", "an interface is a class, not a function")
CLIP = Repair("clip_grad_norm(", "clip_grad_norm_(", "the name without the underscore is deprecated")
STEP = Repair("self.optimizer.setp()", "self.optimizer.step()", "a slip of the pen")
GONE = Repair(
    "if p.requires_grad:",
    "if p.requires_grad and p.grad is not None:",
    "zero_grad lets go of gradients since torch 2, so there may be none",
)
NOTHING_LEFT = Repair(
    '        """Step the rest of the accumulated grads if not perfectly divisible"""\n',
    '        """Step the rest of the accumulated grads if not perfectly divisible"""\n'
    "        if not self.acc_samples: return\n",
    "if the batches came out even, it divided by zero samples",
)


def run(code: str, **names: Any) -> dict[str, Any]:
    space = {"Callback": Callback, **BLOG, **names}
    exec(compile(code, "example", "exec"), space)
    return space


def test_the_document_has_the_blocks_that_are_tested_here() -> None:
    firsts = [block.split("\n")[0] for block in BLOCKS]
    assert firsts == [
        "def train(train_dl, model, epochs, optimizer, loss_func):",
        "def Callback():",
        "def train(train_dl, model, epochs, optimizer, loss_func, callback):",
        "class LearningRateScheduler(Callback):",
        "class EarlyStopping(Callback):",
        "class ParallelTrainer(Callback):",
        "class GradientClipping(Callback):",
        "class AccumulateScheduler(Callback):",
    ]


def test_the_basic_loop_is_what_a_trainer_does() -> None:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run(BLOCKS[0])["train"](tiny_loader(), model, 2, optimizer, nn.CrossEntropyLoss())
    trainer = trainer_with()
    trainer.fit(tiny_loader(), epochs=2)
    assert same(weights(model), weights(trainer.model))


def test_every_event_of_the_interface_is_a_hook_and_is_called() -> None:
    code = ast.parse(repaired(BLOCKS[1], CLASS))
    listed = [node.name for node in ast.walk(code) if isinstance(node, ast.FunctionDef) and node.name != "__init__"]
    assert len(listed) == 10
    assert all(DIALECT.hook(name) is not None for name in listed)
    told: list[str] = []

    def event(name: str) -> Any:
        def method(self: Any) -> None:  # without keywords, as the interface shows them
            told.append(name)

        return method

    trainer_with(type("All", (Callback,), {name: event(name) for name in listed})()).fit(tiny_loader(8), epochs=1)
    assert sorted(told) == sorted(listed)


def test_the_order_of_the_loop_with_callbacks() -> None:
    order = re.findall(r"callback\.(\w+)\(", BLOCKS[2])
    assert len(order) == 9  # all but on_loss_begin
    told: list[str] = []

    def event(name: str) -> Any:
        return lambda self: told.append(name)

    trainer_with(type("All", (Callback,), {name: event(name) for name in order})()).fit(tiny_loader(8), epochs=1)
    assert told == order
    # "if not skip: loss.backward()" is the one skip that the loop shows
    assert "if not skip: loss.backward()" in BLOCKS[2]


def test_the_learning_rate_scheduler_controls_the_rate_over_iterations() -> None:
    seen: list[float] = []

    class Look(Native):
        def before_step(self, run: Any) -> None:
            seen.append(run.optimizer.param_groups[0]["lr"])

    trainer_with(run(BLOCKS[3])["LearningRateScheduler"](), Look()).fit(tiny_loader(), epochs=2)
    assert seen == [fct(iteration) for iteration in range(6)]


def test_early_stopping_stops_when_the_metric_gets_worse() -> None:
    seen: list[float] = []

    def some_fct(last_metrics: list[float]) -> bool:
        seen.append(last_metrics[0])
        return len(seen) > 1 and seen[-1] > seen[-2]

    trainer = trainer_with(run(BLOCKS[4], some_fct=some_fct)["EarlyStopping"](), lr=0.0)
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=4)
    assert trainer.clock.epochs == 4  # nothing got worse
    seen.clear()

    class Worse(Native):
        def after_val_epoch(self, run: Any) -> None:
            with torch.no_grad():
                run.module[2].bias[0] += 5.0

    trainer = trainer_with(run(BLOCKS[4], some_fct=some_fct)["EarlyStopping"](), Worse(), lr=0.0)
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=9)
    assert trainer.clock.epochs == 2


def test_the_parallel_trainer_wraps_the_model_for_the_time_of_training() -> None:
    kinds: list[str] = []

    class Look(Native):
        order = 0

        def before_forward(self, run: Any) -> None:
            kinds.append(type(run.model).__name__)

        def after_run(self, run: Any) -> None:
            kinds.append(type(run.model).__name__)

    parallel = run(BLOCKS[5])["ParallelTrainer"]()
    assert parallel._order == -20
    trainer, plain = trainer_with(parallel, Look()), trainer_with()
    for one in (trainer, plain):
        one.fit(tiny_loader(8), epochs=1)
    assert kinds[0] == "DataParallel"
    assert parallel._order == -20
    assert type(trainer.model).__name__ == "Sequential"
    assert same(weights(trainer.model), weights(plain.model))


@pytest.mark.parametrize("clip", [0.0, 1e-3])
def test_gradient_clipping_after_the_backward(clip: float) -> None:
    model = tiny_classifier()
    norms: list[float] = []

    class Look(Native):
        def before_step(self, run: Any) -> None:
            norms.append(float(torch.stack([p.grad.norm() for p in run.module.parameters()]).norm()))

    clipping = run(repaired(BLOCKS[6], CLIP))["GradientClipping"](model, clip)
    trainer_with(clipping, Look(), model=model).fit(tiny_loader(), epochs=1)
    assert len(norms) == 3
    assert all(norm <= 1.001e-3 if clip else norm > 1e-2 for norm in norms)


@pytest.mark.parametrize(("samples", "drop_last"), [(24, False), (40, False), (40, True)])
def test_accumulating_gradients(samples: int, drop_last: bool) -> None:
    """ "Sum (or average) the gradients of several consecutive backward passes": two batches make one step, with the
    gradient of all their samples, and a rest is stepped or dropped when the epoch ends."""
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kind = run(repaired(BLOCKS[7], STEP, GONE, NOTHING_LEFT))["AccumulateScheduler"]
    accumulate = kind(model, optimizer, accumulation_steps=2, drop_last=drop_last)
    from cadenza import Trainer

    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(reduction="sum"), callbacks=[accumulate], device="cpu")
    trainer.fit(tiny_loader(samples), epochs=2)
    hand = tiny_classifier()
    stepper = torch.optim.SGD(hand.parameters(), lr=0.1)
    for _ in range(2):
        for inputs, targets in tiny_loader(samples, batch_size=16):
            if len(inputs) < 16 and drop_last:
                continue
            stepper.zero_grad()
            nn.functional.cross_entropy(hand(inputs), targets).backward()
            stepper.step()
    pairs = zip(weights(model), weights(hand), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)
