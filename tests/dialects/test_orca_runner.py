"""What Orca's runner shows, where, and what it does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from cadenza.dialects.orca import DIALECT, Callback, MainCallback, Runner
from cadenza.dialects.orca.runner import with_sampler
from cadenza.testing import tiny_loader

from .rooms import same, trainer_with, weights
from .test_orca import OF_ALL, recorder

ALWAYS = {
    *("num_epochs", "epochs", "global_step", "train_loader", "val_loader", "stop", "rank", "size", "backend"),
    *("config", "logger", "timers", "metrics", "sync_stats", "model", "models", "training_models", "optimizer"),
    *("optimizers", "scheduler", "schedulers", "lr_scheduler", "criterion", "epoch"),
}
IN_ITERATION = {"batch", "batch_idx"}
AT_TIMES = {"target", "epoch_stats", "num_steps"}
METHODS = {row.name for row in DIALECT.attributes if not row.field and callable(getattr(Runner, row.name, None))}
RECORDED = {
    "before_run": ALWAYS | {"epoch_stats"},
    "before_train_epoch": ALWAYS,
    "before_train_iter": ALWAYS | IN_ITERATION,
    "after_train_iter": ALWAYS | IN_ITERATION | {"output", "outputs", "loss", "target", "metrics_stats"},
    "before_val_epoch": ALWAYS | {"target"},
    "before_val_iter": ALWAYS | IN_ITERATION,
    "after_val_iter": ALWAYS | IN_ITERATION | {"output", "outputs", "loss", "target"},
    "after_val_epoch": ALWAYS,
    "after_train_epoch": ALWAYS | {"epoch_stats"},
    "after_run": ALWAYS | {"epoch_stats"},
}
"""What the original's runner had at each of its hooks."""


def exists(runner: Runner, name: str) -> bool:
    try:
        getattr(runner, name)
    except AttributeError:
        return False
    return True


def test_each_attribute_exists_where_it_did_and_nowhere_else() -> None:
    seen: dict[str, set[str]] = {}

    def look(name: str, runner: Runner) -> None:
        seen[name] = {row.name for row in DIALECT.attributes if exists(runner, row.name)} - METHODS

    trainer = trainer_with(recorder(Callback, list(RECORDED), [], look))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert seen == RECORDED


def test_every_row_is_there_and_everything_public_has_a_row() -> None:
    rows = {row.name for row in DIALECT.attributes}
    runner = Runner()
    for row in DIALECT.attributes:
        assert hasattr(Runner, row.name) or row.name in {*vars(runner), *AT_TIMES}, row.name
    public = {name for name in (*dir(Runner), *vars(runner)) if not name.startswith("_")}
    assert public - rows == {"dialect"}


def test_numbers_at_the_hooks() -> None:
    seen: list[Any] = []

    class Look(Callback):
        def before_run(self, runner: Runner) -> None:
            seen.append(("run", runner.num_epochs, runner.epochs, runner.epoch_stats))

        def before_train_iter(self, runner: Runner) -> None:
            seen.append((runner.epochs, runner.global_step, runner.batch_idx))

        def after_train_iter(self, runner: Runner) -> None:
            stats = runner.metrics_stats
            assert stats == {"train_loss": runner.loss.item(), "num_samples": 8}
            seen.append(runner.global_step)

        def after_train_epoch(self, runner: Runner) -> None:
            seen.append(("finished", runner.epochs))

    trainer_with(Look()).fit(tiny_loader(16), epochs=2)
    assert seen == [
        ("run", 2, 0, None),
        *((0, 0, 0), 1, (0, 1, 1), 2, ("finished", 1)),
        *((1, 2, 0), 3, (1, 3, 1), 4, ("finished", 2)),
    ]


def test_the_statistics_of_an_epoch() -> None:
    rows = []

    class Keep(Callback):
        def after_train_epoch(self, runner: Runner) -> None:
            rows.append(runner.epoch_stats)

    trainer = trainer_with(Keep())
    history = trainer.fit(tiny_loader(20), tiny_loader(10), epochs=2)
    expected = ["epoch", "batch_count", "num_samples", "train_loss", "last_train_loss", "val_loss", "val_num_samples"]
    assert list(rows[0]) == expected
    assert [(row["epoch"], row["batch_count"], row["num_samples"], row["val_num_samples"]) for row in rows] == [
        (1, 3, 20, 10),
        (2, 3, 20, 10),
    ]
    assert [row["train_loss"] for row in rows] == history["train/loss"]
    assert [row["val_loss"] for row in rows] == history["val/loss"]


def test_num_epochs_may_be_set_before_the_run() -> None:
    class Shorter(Callback):
        def before_run(self, runner: Runner) -> None:
            runner.num_epochs = 1

        def after_train_iter(self, runner: Runner) -> None:
            with pytest.raises(AttributeError, match="may be set in before_run"):
                runner.num_epochs = 5

    trainer = trainer_with(Shorter())
    trainer.fit(tiny_loader(8), epochs=3)
    assert trainer.clock.epochs == 1


def test_values_are_put_got_updated_and_removed(caplog: pytest.LogCaptureFixture) -> None:
    class First(Callback):
        def before_run(self, runner: Runner) -> None:
            runner.put("seen", 1)
            runner.put("seen", 2)
            runner.update("other", 3)

    class Second(Callback):
        def before_run(self, runner: Runner) -> None:
            assert (runner.get("seen"), runner.get("other")) == (2, 3)
            runner.remove("seen")
            for act in (runner.get, runner.remove):
                with pytest.raises(KeyError, match="nothing was put under 'seen'"):
                    act("seen")

    with caplog.at_level(logging.WARNING):
        trainer_with(First(), Second()).fit(tiny_loader(8), epochs=1)
    assert [record.getMessage().split(" ")[0] for record in caplog.records] == ["put('seen')", "update('other')"]


def test_outputs_is_output_and_does_not_leak() -> None:
    seen = []

    class Own(MainCallback):
        def on_iter_forward(self, runner: Runner) -> None:
            inputs, targets = runner.batch
            runner.outputs = runner.model(inputs)
            runner.loss = runner.criterion(runner.outputs, targets)  # type: ignore[misc]

        def before_train_iter(self, runner: Runner) -> None:
            seen.append(exists(runner, "outputs"))

        def after_train_iter(self, runner: Runner) -> None:
            assert runner.output is runner.outputs

    trainer_with(Own()).fit(tiny_loader(), epochs=1)
    assert seen == [False, False, False]


@pytest.mark.parametrize(
    ("n", "hits"), [(2, [True, False, True]), (1, [True] * 3), (0, [False] * 3), (-1, [False] * 3)]
)
def test_every_n_iter_and_every_n_epoch(n: int, hits: list[bool]) -> None:
    iterations, epochs = [], []

    class Every(Callback):
        def after_train_iter(self, runner: Runner) -> None:
            iterations.append(self.every_n_iter(runner, n))

        def before_train_epoch(self, runner: Runner) -> None:
            epochs.append(self.every_n_epoch(runner, n))

    trainer_with(Every()).fit(tiny_loader(8), epochs=3)
    expected = [n > 0 and (step + 1) % n == 0 for step in (1, 2, 3)]  # as the original counts, one late here
    assert iterations == expected
    assert epochs == hits


def test_what_save_checkpoint_wrote_is_loaded_again(tmp_path: Path) -> None:
    file = str(tmp_path / "a" / "mine.ckpt")

    class Save(Callback):
        def after_train_epoch(self, runner: Runner) -> None:
            if runner.epochs == 1:
                runner.save_checkpoint(file)
                runner.save_checkpoint(file + ".weights", save_weights_only=True)

        def after_run(self, runner: Runner) -> None:
            assert list(runner.get_state_dict()) == ["epoch", "models", "optimizers"]
            self.weights = weights(runner.models[0])
            runner.load_checkpoint(file)
            assert runner.epochs == 1
            runner.remove_checkpoint(file)

    one = Save()
    trainer = trainer_with(one)
    trainer.fit(tiny_loader(), epochs=2)
    assert not same(one.weights, weights(trainer.model))
    assert not (tmp_path / "a" / "mine.ckpt").exists()
    assert list(torch.load(file + ".weights", weights_only=True)) == ["epoch", "models"]


def test_with_sampler_keeps_every_setting_of_the_loader() -> None:
    own = {"batch_size": 2, "drop_last": True, "timeout": 7, "num_workers": 1, "worker_init_fn": print}
    loader: DataLoader[Any] = DataLoader(list(range(9)), prefetch_factor=3, persistent_workers=True, **own)
    part = with_sampler(loader, rank=1, size=2, shuffle=False)
    assert list(part.sampler) == [1, 3, 5, 7, 0]
    for name in (*own, "collate_fn", "prefetch_factor", "persistent_workers"):
        assert getattr(part, name) == getattr(loader, name), name


def test_call_hook_and_with_sampler() -> None:
    told: list[str] = []

    class Listens(Callback):
        def after_iter(self, runner: Runner) -> None:
            told.append("heard")

    class Calls(Callback):
        def before_run(self, runner: Runner) -> None:
            runner.call_hook("after_iter")
            with pytest.raises(AttributeError, match="no hook 'after_itre' here; the nearest is 'after_iter'"):
                runner.call_hook("after_itre")
            assert runner.with_sampler(batches := [1, 2]) is batches
            with runner.timers.record("mine"):
                pass
            assert list(runner.timers.stats()) == ["mean_mine_s"]

    trainer_with(Calls(), Listens()).fit(tiny_loader(8), epochs=1)
    assert told[0] == "heard"


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (Callback, "on_train_end", "orca: on_train_end is not carried: it is of the callbacks of 2.0 and 2.1; use"),
        (Callback, "before_trian_iter", "orca: there is no hook 'before_trian_iter' here; the nearest is 'before_tr"),
        (Callback, "set_model", "orca: set_model is not carried"),
        (MainCallback, "on_test_forward", "orca: there is no hook 'on_test_forward' here; the nearest is"),
    ],
)
def test_methods_that_would_never_be_called_are_refused(kind: type[Callback], name: str, message: str) -> None:
    foreign = type("Mine", (kind,), {name: lambda self, runner: None})
    with pytest.raises(TypeError, match=message):
        trainer_with(foreign())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("epoch_", "orca: there is no attribute 'epoch_' here; the nearest is 'epoch"),
        ("loss", "run.loss exists from after_loss"),
        ("num_steps", "orca: runner.num_steps is not there now: The limit of evaluate, only inside it"),
        ("metrics_stats", "orca: metrics_stats exists at after_train_iter alone"),
    ],
)
def test_attributes_that_do_not_exist_say_why(name: str, message: str) -> None:
    class Reads(Callback):
        def before_train_iter(self, runner: Runner) -> None:
            getattr(runner, name)

    with pytest.raises(AttributeError, match=message):
        trainer_with(Reads()).fit(tiny_loader(8), epochs=1)


def test_gradients_are_off_in_the_hooks_of_validation() -> None:
    seen = {}

    def look(name: str, runner: Runner) -> None:
        seen[name] = torch.is_grad_enabled()

    trainer_with(recorder(Callback, OF_ALL, [], look)).fit(tiny_loader(8), tiny_loader(8), epochs=1)
    off = {name for name, on in seen.items() if not on}
    shared = {"before_epoch", "before_iter", "after_iter"}  # called last in validation
    assert off == {"before_val_epoch", "before_val_iter", "after_val_iter"} | shared
    assert torch.is_grad_enabled()
