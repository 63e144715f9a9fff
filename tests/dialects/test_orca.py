"""Orca's callbacks: order, delegation, the main callback, the runner and its lives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import cadenza
from cadenza import CallbackError, Trainer
from cadenza.callbacks import GradientClip
from cadenza.dialects.orca import DIALECT, Callback, MainCallBack, MainCallback, Runner, make_only_mainCallback
from cadenza.testing import tiny_classifier, tiny_loader

from .documents import trace
from .rooms import same, trainer_with, weights

OF_ALL = [row.name for row in DIALECT.hooks if row.name.startswith(("before_", "after_"))]
OF_MAIN = [
    "on_train_forward",
    "on_iter_forward",
    "on_iter_backward",
    "on_lr_adjust",
    "on_val_forward",
    "on_pred_forward",
]


def recorder(base: type[Callback], names: list[str], told: list[str], act: Any = None) -> Any:
    """A callback that overrides every hook, tells, and calls the base method, as the recordings were made."""

    def hook(name: str) -> Any:
        def method(self: Any, runner: Runner) -> None:
            told.append(name)
            if act is not None:
                act(name, runner)
            getattr(super(kind, self), name)(runner)

        return method

    kind = type("Recorder", (base,), {name: hook(name) for name in names})
    return kind()


def test_there_are_24_points() -> None:
    assert len(OF_ALL) == 18
    assert all(hasattr(Callback, name) for name in OF_ALL)
    assert all(hasattr(MainCallback, name) and not hasattr(Callback, name) for name in OF_MAIN)


def test_the_trace_of_the_original_line_by_line() -> None:
    told: list[str] = []
    trainer_with(recorder(Callback, OF_ALL, told)).fit(tiny_loader(), tiny_loader(), epochs=2)
    assert told == trace("orca-fit-validate.txt")


def test_one_epoch_with_the_main_callbacks_own_points() -> None:
    told: list[str] = []
    main = recorder(MainCallback, [*OF_ALL, *OF_MAIN], told)
    trainer_with(main).fit(tiny_loader(8), tiny_loader(8), epochs=1)
    assert told == [
        *("before_run", "before_train_epoch", "before_epoch", "before_train_iter", "before_iter"),
        *("on_train_forward", "on_iter_forward", "on_iter_backward", "after_train_iter", "after_iter", "on_lr_adjust"),
        *("before_val_epoch", "before_epoch", "before_val_iter", "before_iter", "on_val_forward", "on_iter_forward"),
        *("after_val_iter", "after_iter", "after_val_epoch", "after_epoch"),
        *("after_train_epoch", "after_epoch", "after_run"),
    ]


def test_evaluate_fires_only_val_points_and_predict_only_pred_points() -> None:
    told: list[str] = []
    trainer = trainer_with(recorder(MainCallback, [*OF_ALL, *OF_MAIN], told))
    trainer.validate(tiny_loader(8))
    assert told == [
        *("before_val_epoch", "before_epoch", "before_val_iter", "before_iter", "on_val_forward", "on_iter_forward"),
        *("after_val_iter", "after_iter", "after_val_epoch", "after_epoch"),
    ]
    told.clear()
    trainer.predict(tiny_loader(8))
    assert told == [
        *("before_pred_epoch", "before_epoch", "before_pred_iter", "before_iter", "on_pred_forward"),
        *("after_pred_iter", "after_iter", "after_pred_epoch", "after_epoch"),
    ]


def test_the_names_of_the_tutorial_are_aliases() -> None:
    told: list[str] = []
    names = ["on_run_begin", "on_epoch_begin", "on_iter_begin", "on_iter_end", "on_epoch_end", "on_run_end"]
    trainer_with(recorder(Callback, names, told)).fit(tiny_loader(8), epochs=1)
    assert told == names


def test_an_override_of_a_stage_hook_keeps_the_shared_one_from_being_called() -> None:
    told: list[str] = []

    class Mine(Callback):
        def before_epoch(self, runner: Runner) -> None:
            told.append(f"shared {runner._mode}")

        def before_train_epoch(self, runner: Runner) -> None:
            told.append("train")

    trainer_with(Mine()).fit(tiny_loader(8), tiny_loader(8), epochs=1)
    assert told == ["train", "shared val"]


def test_after_run_is_not_called_after_an_exception() -> None:
    told: list[str] = []

    def fail(name: str, runner: Runner) -> None:
        if name == "after_train_iter":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer_with(recorder(Callback, OF_ALL, told, fail)).fit(tiny_loader(8), epochs=1)
    assert told[-1] == "after_train_iter"


# Stop ----------------------------------------------------------------------------------------------------------------


def batches_until(hook: str, wanted: Any, **loaders: Any) -> tuple[list[str], Trainer]:
    told: list[str] = []

    def stop(name: str, runner: Runner) -> None:
        if name == hook and wanted(runner):
            runner.stop = True

    trainer = trainer_with(recorder(MainCallback, [*OF_ALL, "on_lr_adjust"], told, stop))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=4)
    return told, trainer


def test_stop_ends_the_batches_and_no_further_epoch_begins() -> None:
    told, trainer = batches_until("before_train_iter", lambda runner: runner.batch_idx == 1)
    assert told.count("before_train_iter") == 2
    assert told.count("before_val_epoch") == told.count("on_lr_adjust") == told.count("after_train_epoch") == 1
    assert told[-1] == "after_run"
    assert trainer.clock.epochs == 1


def test_stop_at_the_end_of_an_epoch_or_in_validation() -> None:
    told, _ = batches_until("after_train_epoch", lambda runner: True)
    assert (told.count("before_train_iter"), told.count("before_val_iter")) == (3, 1)
    told, _ = batches_until("before_val_iter", lambda runner: True)
    assert (told.count("before_train_iter"), told.count("after_val_iter"), told.count("after_run")) == (3, 1, 1)


def test_stop_before_the_first_batch_leaves_one_batch_and_is_forgotten_in_the_next_fit() -> None:
    told, trainer = batches_until("before_run", lambda runner: runner.global_step == 0)
    assert told.count("before_train_iter") == 1
    trainer.fit(tiny_loader(), epochs=2)
    assert told.count("before_train_iter") == 1 + 6


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
