"""Orca's callbacks: order, delegation, the main callback, the runner and its lives."""

from __future__ import annotations

from typing import Any

import pytest

from cadenza import Trainer
from cadenza.dialects.orca import DIALECT, Callback, MainCallback, Runner
from cadenza.testing import tiny_loader

from .documents import trace
from .rooms import trainer_with

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
