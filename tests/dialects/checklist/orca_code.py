"""What both of Orca's documents promise of callbacks, their pseudo-code, and their first example."""

from __future__ import annotations

import re
from collections.abc import Callable as Function
from typing import Any

import pytest
import torch

from cadenza import Callback as Native
from cadenza import CallbackError
from cadenza import MainCallback as NativeMain
from cadenza.dialects.orca import Callback, Estimator, MainCallback
from cadenza.points import POINTS
from cadenza.testing import tiny_classifier, tiny_loader

from ..documents import examples, text_of
from ..open_names import Detector
from ..rooms import same, trainer_with, weights
from .orca_rows import LISTED, PLACES, calls_of, space
from .rows import Checklist


def add_promises(rows: Checklist, document: str) -> None:
    """What the introduction says of callbacks."""

    @rows.dialect("a callback is passed into the function that trains, which invokes it")
    def passed_in() -> None:
        told: list[str] = []

        class Tells(Callback):
            def before_run(self, runner: Any) -> None:
                told.append("called")

        def model(config: dict[str, Any]) -> torch.nn.Module:
            return tiny_classifier()

        def optimizer(module: torch.nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
            return torch.optim.SGD(module.parameters(), lr=0.1)

        one = Estimator.from_torch(model=model, optimizer=optimizer, loss=torch.nn.CrossEntropyLoss(), backend="local")
        one.fit(lambda config, batch_size: tiny_loader(8), epochs=1, callbacks=[Tells()])
        assert told == ["called"]

    @rows.native("a callback is passed into the function that trains, which invokes it")
    def passed_in_natively() -> None:
        told: list[str] = []

        class Tells(Native):
            def before_run(self, run: Any) -> None:
                told.append("called")

        trainer_with(Tells()).fit(tiny_loader(8), epochs=1)
        assert told == ["called"]

    @rows.both("a callback that does nothing by default changes nothing")
    def nothing_by_default() -> None:
        def trained(*callbacks: Any) -> list[torch.Tensor]:
            trainer = trainer_with(*callbacks)
            trainer.fit(tiny_loader(), tiny_loader(8), epochs=2)
            return weights(trainer.model)

        assert same(trained(), trained(Callback()))
        assert same(trained(), trained(Native()))

    @rows.both("the main callback contains the default behaviours")
    def defaults() -> None:
        def trained(*callbacks: Any) -> list[torch.Tensor]:
            trainer = trainer_with(*callbacks)
            trainer.fit(tiny_loader(), epochs=2)
            return weights(trainer.model)

        assert same(trained(), trained(MainCallback()))
        assert same(trained(), trained(NativeMain()))

    @rows.dialect("there are 23 points at which callbacks can be inserted")
    def points() -> None:
        lines = [line for line in text_of(document).splitlines() if " points: " in line]
        names = [name for line in lines for name in re.findall(r"`(\w+)`", line)]
        assert len(names) == 23
        assert all(hasattr(MainCallback, name) for name in names)

    @rows.native("there are 23 points at which callbacks can be inserted")
    def native_points() -> None:
        assert len(POINTS) >= 23


ORDER = ("before_run", "before_epoch", "before_iter", "on_iter_forward", "on_iter_backward", "after_iter")


def add_pseudo_code(rows: Checklist, document: str) -> None:
    """The order of the hooks, and what exists for how long."""
    code = examples(document)[2]
    order = re.findall(r'call_hooks\("(\w+)"', code)
    deleted = re.findall(r"del self\.(\w+)", code)
    assert deleted == ["batch", "batch_idx", "outputs", "loss"]

    def told_by(base: type[Any], names: list[str]) -> list[str]:
        told: list[str] = []

        def method(name: str) -> Function[[Any, Any], None]:
            def tell(self: Any, handed: Any) -> None:
                told.append(name)
                getattr(super(kind, self), name)(handed)

            return tell

        kind = type("Tells", (base,), {name: method(name) for name in names})
        trainer_with(kind()).fit(tiny_loader(8), epochs=1)
        return told

    @rows.dialect("the order of the hooks in the pseudo-code")
    def ordered() -> None:
        assert told_by(MainCallback, order) == order

    @rows.native("the order of the hooks in the pseudo-code")
    def ordered_natively() -> None:
        names = [LISTED.get(name, name) for name in order]
        told = told_by(NativeMain, names)
        assert told == [*ORDER, "on_lr_adjust", "after_epoch", "after_run"]

    for name in deleted:
        _add_deleted(rows, name)
    _add_epoch_number(rows)


def _add_deleted(rows: Checklist, name: str) -> None:
    text = f"`{name}` of the last iteration is not there in the next one"
    field = {"outputs": "output"}.get(name, name)

    def looking(base: type[Any], before: str, after: str, attribute: str) -> list[bool]:
        seen: list[bool] = []
        look = {point: lambda self, handed: seen.append(hasattr(handed, attribute)) for point in (before, after)}
        trainer_with(type("Look", (base,), look)()).fit(tiny_loader(16), epochs=1)
        return seen

    @rows.dialect(text)
    def deleted() -> None:
        before = name in ("batch", "batch_idx")  # these two are new when an iteration begins
        assert looking(Callback, "on_iter_begin", "on_iter_end", name) == [before, True] * 2
        assert not any(looking(Callback, "on_epoch_begin", "on_epoch_end", name))

    @rows.native(text)
    def deleted_natively() -> None:
        before = field in ("batch", "batch_idx")
        assert looking(Native, "before_train_iter", "after_train_iter", field) == [before, True] * 2
        assert not any(looking(Native, "before_epoch", "after_epoch", field))


def _add_epoch_number(rows: Checklist) -> None:
    text = "`self.epoch+=1` at the beginning of each epoch"

    @rows.dialect(text)
    def counted() -> None:
        seen: list[int] = []
        names = ("on_run_begin", "on_epoch_begin", "on_epoch_end", "on_run_end")
        look = {name: lambda self, runner: seen.append(runner.epoch) for name in names}
        trainer_with(type("Look", (Callback,), look)()).fit(tiny_loader(8), epochs=2)
        assert seen == [0, 1, 1, 2, 2, 2]

    @rows.native(text)
    def counted_natively() -> None:
        seen: list[int] = []
        look = {name: lambda self, run: seen.append(run.epoch) for name in ("before_epoch", "after_epoch")}
        trainer_with(type("Look", (Native,), look)()).fit(tiny_loader(8), epochs=2)
        assert seen == [0, 0, 1, 1]  # from 0


def add_main_callback(rows: Checklist) -> None:
    """One main callback, and the example whose model computes the losses."""
    alone = "only one main callback: there is no second forward or backward"

    @rows.dialect(alone)
    def one_main() -> None:
        assert calls_of(MainCallback, "on_iter_forward") == PLACES["on_iter_forward"]
        with pytest.raises(CallbackError, match="both own the behaviours"):
            trainer_with(MainCallback(), type("Second", (MainCallback,), {})())

    @rows.native(alone)
    def one_native_main() -> None:
        with pytest.raises(CallbackError, match="both own the behaviours"):
            trainer_with(NativeMain(), type("Second", (NativeMain,), {})())

    starred = "the points with a star are available in the main callback alone"

    @rows.dialect(starred)
    def refused() -> None:
        for name in ("on_iter_forward", "on_train_forward", "on_val_forward", "on_iter_backward", "on_lr_adjust"):
            with pytest.raises(CallbackError, match="derive it from MainCallback"):
                trainer_with(type("Plain", (Callback,), {name: lambda self, runner: None})())

    @rows.native(starred)
    def refused_natively() -> None:
        with pytest.raises(CallbackError, match="MainCallback"):
            trainer_with(type("Plain", (Native,), {"on_iter_forward": lambda self, run: None})())


def add_usage_1(rows: Checklist, code: str) -> None:
    """A model that computes its losses."""

    def by_hand() -> list[torch.Tensor]:
        model = Detector()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for images, targets in tiny_loader():
                optimizer.zero_grad()
                sum(model(images, targets).values()).backward()  # type: ignore[union-attr]
                optimizer.step()
        return weights(model)

    example = "example `CustomMainCB`: a model that calculates its losses inside"

    @rows.dialect(example)
    def runs() -> None:
        model = Detector()
        history = trainer_with(space(code)["CustomMainCB"](), model=model).fit(tiny_loader(), tiny_loader(), epochs=2)
        assert same(weights(model), by_hand())
        assert len(history["val/loss"]) == 2

    @rows.native(example)
    def runs_natively() -> None:
        class Own(NativeMain):
            def on_iter_forward(self, run: Any) -> None:
                image, target = run.batch
                run.output = run.model(image, target)
                run.loss = sum(loss for loss in run.output.values())

        model = Detector()
        trainer_with(Own(), model=model).fit(tiny_loader(), epochs=2)
        assert same(weights(model), by_hand())

    read = "a forward of one's own reads `runner.batch` and calls `runner.model`"

    @rows.both(read)
    def reads_the_batch() -> None:
        for base in (MainCallback, NativeMain):
            shapes: list[tuple[int, ...]] = []

            def forward(self: Any, handed: Any, shapes: Any = shapes) -> None:
                image, target = handed.batch
                shapes.append((*image.shape, *target.shape))
                handed.output = handed.model(image)
                handed.loss = handed.criterion(handed.output, target)

            trainer_with(type("Own", (base,), {"on_iter_forward": forward})()).fit(tiny_loader(16), epochs=1)
            assert shapes == [(8, 4, 8)] * 2
