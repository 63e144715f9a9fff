"""Orca's tutorial on customising a training: every class, method, point, attribute and example of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cadenza import Callback as Native
from cadenza import MainCallback as NativeMain
from cadenza import Trainer
from cadenza.dialects.orca import Callback, MainCallback
from cadenza.testing import tiny_classifier, tiny_loader

from ..documents import examples
from ..open_names import ORCA
from ..rooms import trainer_with
from .orca_code import add_main_callback, add_promises, add_pseudo_code, add_usage_1
from .orca_rows import add_listings, add_points, space
from .rows import Checklist

DOCUMENT = "orca-tutorial.txt"
ROWS = Checklist("000", "Orca: How to Customize Your Pytorch Training Process")

add_promises(ROWS, DOCUMENT)
add_listings(ROWS, DOCUMENT)
add_points(ROWS, DOCUMENT)
add_main_callback(ROWS)
add_pseudo_code(ROWS, DOCUMENT)
add_usage_1(ROWS, examples(DOCUMENT)[4])


# Attributes -----------------------------------------------------------------------------------------------------------

ALWAYS = {
    "num_epochs": ("num_epochs", [2, 2, 2]),
    "epochs": ("clock.epochs", [0, 0, 2]),
    "rank": ("rank", [0, 0, 0]),
}
OBJECTS = ("train_loader", "val_loader", "model", "optimizer", "scheduler", "criterion")


def values(base: type[Any], path: str, trainer: Any = None) -> list[Any]:
    """What a callback reads in before_run, in the first iteration and in after_run."""
    seen: list[Any] = []

    def read(self: Any, handed: Any) -> None:
        value = handed
        for part in path.split("."):
            value = getattr(value, part)
        seen.append(value)

    def first(self: Any, handed: Any) -> None:
        if handed.batch_idx == 0 and len(seen) == 1:
            read(self, handed)

    look = type("Look", (base,), {"before_run": read, "before_train_iter": first, "after_run": read})()
    trainer = trainer or trainer_with()
    trainer.add(look)
    trainer.fit(TRAIN, VALID, epochs=2)
    return seen


TRAIN, VALID = tiny_loader(), tiny_loader(8)


def add_always(name: str, native: str, expected: list[Any]) -> None:
    text = f"attribute `{name}` of the runner, all the time"

    @ROWS.dialect(text)
    def there() -> None:
        assert values(Callback, name) == expected

    @ROWS.native(text)
    def there_natively() -> None:
        assert values(Native, native) == expected


def add_object(name: str) -> None:
    text = f"attribute `{name}` of the runner, all the time"

    def looked(base: type[Any]) -> None:
        model = tiny_classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        criterion = torch.nn.CrossEntropyLoss()
        trainer = Trainer(model, optimizer, criterion, scheduler=scheduler, device="cpu")
        owned = {
            "train_loader": TRAIN, "val_loader": VALID, "model": model, "optimizer": optimizer, "scheduler": scheduler,
            "criterion": criterion,
        }  # fmt: skip
        assert [found is owned[name] for found in values(base, name, trainer)] == [True] * 3

    ROWS.dialect(text)(lambda: looked(Callback))
    ROWS.native(text)(lambda: looked(Native))


for name, (native, expected) in ALWAYS.items():
    add_always(name, native, expected)
for name in OBJECTS:
    add_object(name)


def add_in_iterations(name: str) -> None:
    text = f"attribute `{name}` of the runner, within iterations alone"

    def seen(base: type[Any]) -> list[Any]:
        found: list[Any] = []

        def read(self: Any, handed: Any) -> None:
            value = getattr(handed, name)
            shape = [list(part.shape) for part in value] if name == "batch" else value
            found.append(list(shape.shape) if isinstance(shape, torch.Tensor) else shape)

        def outside(self: Any, handed: Any) -> None:
            with pytest.raises(AttributeError):
                getattr(handed, name)

        look = {"after_train_iter": read, "before_run": outside, "before_train_epoch": outside, "after_run": outside}
        trainer_with(type("Look", (base,), look)()).fit(tiny_loader(16), epochs=1)
        return found

    expected = {"batch": [[[8, 4], [8]]] * 2, "batch_idx": [0, 1], "output": [[8, 3]] * 2, "loss": [[], []]}[name]

    @ROWS.both(text)
    def within() -> None:
        assert seen(Callback) == seen(Native) == expected


for name in ("batch", "batch_idx", "output", "loss"):
    add_in_iterations(name)


@ROWS.dialect("`runner.outputs` and `runner.lr_scheduler` of the listing are `output` and `scheduler`")
def other_names() -> None:
    class Look(Callback):
        def after_train_iter(self, runner: Any) -> None:
            assert runner.outputs is runner.output
            assert runner.lr_scheduler is runner.scheduler

    trainer_with(Look()).fit(tiny_loader(8), epochs=1)


ROWS.says(
    "`runner.outputs` and `runner.lr_scheduler` of the listing are `output` and `scheduler`",
    native="one name for one thing: run.output and run.scheduler",
)


# Promises and usages --------------------------------------------------------------------------------------------------


@ROWS.dialect("`on_iter_forward` must assign `output` and `loss`")
def must_assign() -> None:
    class Forgets(MainCallback):
        def on_iter_forward(self, runner: Any) -> None:
            runner.model(runner.batch[0])

    with pytest.raises(AttributeError, match="output"):
        trainer_with(Forgets()).fit(tiny_loader(8), epochs=1)


@ROWS.native("`on_iter_forward` must assign `output` and `loss`")
def must_assign_natively() -> None:
    class Forgets(NativeMain):
        def on_iter_forward(self, run: Any) -> None:
            run.model(run.batch[0])

    with pytest.raises(AttributeError, match="output"):
        trainer_with(Forgets()).fit(tiny_loader(8), epochs=1)


@ROWS.both("usage 1: the losses of a dict are summed")
def summed() -> None:
    losses = {"classes": torch.tensor(1.0), "size": torch.tensor(0.5)}
    code = examples(DOCUMENT)[3]
    assert float(space(code, model=lambda images, targets: losses, images=0, targets=0)["losses"]) == 1.5


@ROWS.both("usage 2: `adjust_learning_rate` sets the learning rate by hand")
def by_hand() -> None:
    adjust = space(examples(DOCUMENT)[5])["adjust_learning_rate"]
    for base in (Callback, Native):
        rates: list[float] = []

        def rate(self: Any, handed: Any, rates: Any = rates) -> None:
            adjust(handed.optimizer, 0.5, 0, handed.batch_idx, 0, 3)
            rates.append(handed.optimizer.param_groups[0]["lr"])

        trainer_with(type("Adjusts", (base,), {"before_train_iter": rate})()).fit(tiny_loader(), epochs=1)
        assert rates == pytest.approx([ORCA["initial_lr"] * 0.5**index for index in range(3)])


WARM = [1e-6 + (0.1 - 1e-6) * index / (3 * 5) for index in range(3)]


@ROWS.dialect("usage 2: `on_lr_adjust` sets the learning rate by `runner.epochs` and `runner.batch_idx`")
def adjusted() -> None:
    seen: list[float] = []

    class Look(Callback):
        def after_train_iter(self, runner: Any) -> None:
            seen.append(runner.optimizer.param_groups[0]["lr"])

    trainer_with(space(examples(DOCUMENT)[6])["CustomMainCB"](), Look()).fit(tiny_loader(), epochs=7)
    assert seen == pytest.approx(WARM * 6 + [0.1 * 0.5**2] * 3)


@ROWS.native("usage 2: `on_lr_adjust` sets the learning rate by `runner.epochs` and `runner.batch_idx`")
def adjusted_natively() -> None:
    class Warms(Native):
        owns = frozenset({"lr"})

        def after_train_iter(self, run: Any) -> None:
            lr = WARM[run.batch_idx] if run.epoch <= 5 else 0.1 * 0.5**2
            for group in run.optimizer.param_groups:
                group["lr"] = lr

    class Look(Native):
        order = 10**6

        def __init__(self) -> None:
            self.seen: list[float] = []

        def after_train_iter(self, run: Any) -> None:
            self.seen.append(run.optimizer.param_groups[0]["lr"])

    look = Look()
    trainer_with(Warms(), look).fit(tiny_loader(), epochs=7)
    assert look.seen == pytest.approx(WARM * 6 + [0.1 * 0.5**2] * 3)
