"""Values that are logged in iterations: the row of each iteration, and one value over the pass."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable as Fn
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.processes import ranks
from torch import Tensor, nn

from cadenza import Callback, History, Trainer
from cadenza.callbacks import Accumulate, Checkpoint, EarlyStopping, GradientStats, Progress
from cadenza.experiment import Experiment, Tracker
from cadenza.run import Run
from cadenza.testing import tiny_classifier, tiny_data, tiny_loader

SIZES = [5, 3, 1, 7]
"""Samples of each batch: a mean that is not weighted by them is another number."""


def batches() -> list[tuple[Tensor, Tensor]]:
    inputs, targets = tiny_data(sum(SIZES), seed=3).tensors
    return list(zip(inputs.split(SIZES), targets.split(SIZES), strict=True))


def made(*callbacks: Callback, **more: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu", **more)


def logs(point: str, log: Fn[[Run], None], **more: Any) -> Trainer:
    trainer = made(**more)
    trainer.on(point)(log)
    return trainer


def weighted(values: list[float]) -> float:
    return sum(value * size for value, size in zip(values, SIZES, strict=True)) / sum(SIZES)


# One process --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["numbers", "tensors"])
def test_the_value_over_a_pass_is_the_mean_weighted_by_samples(kind: Fn[[float], Any]) -> None:
    trainer = logs("after_val_iter", lambda run: run.log("val/ce", kind(float(run.batch_idx))))
    history = trainer.fit(tiny_loader(), batches(), epochs=2)
    expected = weighted([0.0, 1.0, 2.0, 3.0])
    assert history["val/ce"] == [expected, expected]
    assert [row["val/ce"] for row in history.epochs] == [expected, expected]
    assert [row["val/ce"] for row in history.iters] == [0.0, 1.0, 2.0, 3.0] * 2


@pytest.mark.parametrize(
    ("over", "expected"), [("mean", weighted([3.0, 1.0, 4.0, 2.0])), ("last", 2), ("sum", 10), ("max", 4), ("min", 1)]
)
def test_over_names_another_value(over: str, expected: float) -> None:
    values = [3.0, 1.0, 4.0, 2.0]
    trainer = logs("after_val_iter", lambda run: run.log("val/x", values[run.batch_idx], over=over))
    assert trainer.fit(tiny_loader(), batches(), epochs=1)["val/x"] == [expected]


def test_a_dict_logs_each_of_its_values() -> None:
    trainer = logs("after_val_iter", lambda run: run.log({"val/a": run.batch_idx, "val/b": 2}, over="max"))
    history = trainer.fit(tiny_loader(), batches(), epochs=1)
    assert (history["val/a"], history["val/b"]) == ([3.0], [2.0])


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (({"a": 1}, 2), {}, "a dict of several, not both"),
        ((3, 2), {}, "the name of a metric is a text, not 3"),
        (("a", 2), {"over": "median"}, 'over is "mean", "last", "sum", "max" or "min", not \'median\''),
        (({"epoch": 2},), {}, "'epoch' says where a row was written"),
        (({"a": torch.ones(2)},), {}, "'a'"),
    ],
)
def test_wrong_arguments_are_errors(arguments: tuple[Any, ...], options: dict[str, Any], error: str) -> None:
    trainer = logs("after_val_iter", lambda run: run.log(*arguments, **options))
    with pytest.raises((TypeError, ValueError), match=error):
        trainer.fit(tiny_loader(), tiny_loader(), epochs=1)


def test_one_name_has_one_value_over_a_pass() -> None:
    def log(run: Run) -> None:
        run.log("val/x", 1, over="max" if run.batch_idx else "min")

    with pytest.raises(ValueError, match=r"'val/x' is logged with over='max' here, and elsewhere .* over='min'"):
        logs("after_val_iter", log).fit(tiny_loader(), batches(), epochs=1)


def test_the_last_value_of_an_iteration_counts_once() -> None:
    def log(run: Run) -> None:
        run.log("val/x", 100)
        run.log("val/x", run.batch_idx)

    history = logs("after_val_iter", log).fit(tiny_loader(), batches(), epochs=1)
    assert history["val/x"] == [weighted([0, 1, 2, 3])]


def test_iterations_without_a_value_add_nothing() -> None:
    def log(run: Run) -> None:
        if run.batch_idx in (1, 3):
            run.log("val/x", run.batch_idx)

    history = logs("after_val_iter", log).fit(tiny_loader(), batches(), epochs=1)
    assert history["val/x"] == [(1 * SIZES[1] + 3 * SIZES[3]) / (SIZES[1] + SIZES[3])]


def test_skipped_batches_and_micro_batches_count_if_they_logged() -> None:
    class Skip(Callback):
        def before_train_iter(self, run: Run) -> None:
            run.log("train/x", run.batch_idx)
            if run.batch_idx == 1:
                run.skip_batch()

    trainer = made(Skip(), Accumulate(2))
    assert trainer.fit(batches(), epochs=1)["train/x"] == [weighted([0, 1, 2, 3])]


@pytest.mark.parametrize("ask", ["end_epoch", "stop"])
def test_a_pass_that_ends_early_closes_over_what_happened(ask: str) -> None:
    def log(run: Run) -> None:
        run.log("train/x", run.batch_idx)
        if run.batch_idx == 1:
            getattr(run, ask)()

    trainer = logs("after_train_iter", log)
    trainer.fit(batches(), epochs=1)
    assert trainer.history["train/x"] == [(0 * SIZES[0] + 1 * SIZES[1]) / (SIZES[0] + SIZES[1])]


def test_metrics_have_the_latest_value_in_the_pass_and_the_value_over_it_at_its_end() -> None:
    trainer = made()
    seen: list[float] = []
    trainer.on("after_val_iter")(lambda run: run.log("val/x", run.batch_idx))
    trainer.on("after_val_iter")(lambda run: seen.append(run.metrics["val/x"]))
    trainer.on("after_val_epoch")(lambda run: seen.append(run.metrics["val/x"]))
    trainer.fit(tiny_loader(), batches(), epochs=1)
    assert seen == [0, 1, 2, 3, weighted([0, 1, 2, 3])]


def test_what_is_logged_after_the_pass_counts_more() -> None:
    trainer = made()
    trainer.on("after_val_iter")(lambda run: run.log("val/x", run.batch_idx))
    trainer.on("after_val_epoch")(lambda run: run.log("val/x", 42.0))
    assert trainer.fit(tiny_loader(), batches(), epochs=1)["val/x"] == [42.0]


@pytest.mark.parametrize("stage", ["train", "val"])
def test_the_loss_of_a_stage_stays_that_of_the_engine(stage: str) -> None:
    alone = made().fit(batches(), batches(), epochs=1)
    both = made()
    both.on(f"after_{stage}_iter")(lambda run: run.log(f"{stage}/loss", 1000.0, over="last"))
    assert both.fit(batches(), batches(), epochs=1)[f"{stage}/loss"] == alone[f"{stage}/loss"]
    assert [row[f"{stage}/loss"] for row in both.history.iters] == [1000.0] * len(SIZES)


def test_sums_are_exact_where_single_precision_would_not_be() -> None:
    values = [16777216.0, 1.0, 1.0, 1.0]

    def log(run: Run) -> None:
        run.log("val/x", torch.tensor(values[run.batch_idx]), over="sum")

    assert logs("after_val_iter", log).fit(tiny_loader(), batches(), epochs=1)["val/x"] == [16777219.0]


def test_a_long_pass_is_folded_on_the_way() -> None:
    loader = [(torch.zeros(1, 4), torch.zeros(1, dtype=torch.long))] * 1100
    trainer = made()
    for over in ("mean", "sum", "max", "min", "last"):
        trainer.on("after_val_iter")(lambda run, over=over: run.log(f"val/{over}", run.batch_idx, over=over))
    found = trainer.validate(loader)
    assert [found[f"val/{over}"] for over in ("mean", "sum", "max", "min", "last")] == [549.5, 604450, 1099, 0, 1099]


def test_an_evaluation_returns_the_values_over_its_pass() -> None:
    trainer = logs("after_test_iter", lambda run: run.log("test/x", run.batch_idx))
    assert trainer.test(batches())["test/x"] == weighted([0, 1, 2, 3])


def test_nothing_is_read_from_the_device_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = logs("after_train_iter", lambda run: run.log("train/x", run.loss))
    trainer.fit(tiny_loader(), epochs=1)
    with monkeypatch.context() as patch:
        for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__"):
            patch.setattr(Tensor, name, lambda *_: pytest.fail("a tensor was read"))
        trainer.fit(tiny_loader(), epochs=1)


# Who looks at it ------------------------------------------------------------------------------------------------------


def test_early_stopping_follows_the_value_over_the_pass() -> None:
    """The last batch becomes worse in each epoch, and the mean better."""

    def log(run: Run) -> None:
        last = run.batch_idx == len(SIZES) - 1
        run.log("val/x", run.epoch * 0.1 if last else -10.0 * run.epoch)

    trainer = made(EarlyStopping("val/x", mode="min", patience=1))
    trainer.on("after_val_iter")(log)
    trainer.fit(tiny_loader(), batches(), epochs=4)
    assert trainer.clock.epochs == 4


def test_progress_shows_the_value_over_the_pass(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = made(Progress())
    trainer.on("after_val_iter")(lambda run: run.log("val/x", run.batch_idx))
    trainer.fit(tiny_loader(), batches(), epochs=1)
    shown = capsys.readouterr()
    assert f"val/x {weighted([0, 1, 2, 3]):.4g}" in shown.out + shown.err


class Kept(Tracker):
    """Keeps the rows that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[dict[str, Any]] = []

    def log(self, row: dict[str, Any]) -> None:
        self.kept.append(row)


def test_trackers_have_both_under_two_names() -> None:
    tracker = Kept()
    trainer = made(tracker)
    trainer.on("after_val_iter")(lambda run: run.log("val/x", run.batch_idx))
    trainer.fit(tiny_loader(), batches(), epochs=1)
    assert [row["val/x_batch"] for row in tracker.kept if "val/x_batch" in row] == [0, 1, 2, 3]
    assert [row["val/x"] for row in tracker.kept if "val/x" in row] == [weighted([0, 1, 2, 3])]


# The loss within an epoch ---------------------------------------------------------------------------------------------


def losses(history: History) -> list[int]:
    """The steps at which a loss was logged in an iteration."""
    return [row["step"] for row in history.iters if "train/loss" in row]


def test_log_every_logs_the_loss_of_so_many_steps() -> None:
    seen: list[float] = []
    trainer = logs("after_train_iter", lambda run: seen.append(float(run.loss.detach())))
    history = trainer.fit(tiny_loader(40), epochs=2, log_every="3 steps")
    steps = losses(history)
    assert steps == [step for step in range(1, len(seen) + 1) if step % 3 == 0]
    assert steps
    assert [row["train/loss"] for row in history.iters] == [seen[step - 1] for step in steps]
    assert history["train/loss"] == made().fit(tiny_loader(40), epochs=2)["train/loss"]


def test_an_experiment_or_a_tracker_logs_the_loss_every_50_steps(tmp_path: Path) -> None:
    loader = [(torch.zeros(1, 4), torch.zeros(1, dtype=torch.long))] * 120
    alone, tracked = made(), made(Kept())
    experiment = made(experiment=Experiment("p", "n", root=tmp_path))
    for trainer, expected in ((alone, []), (tracked, [50, 100]), (experiment, [50, 100])):
        assert losses(trainer.fit(loader, epochs=1)) == expected
    off = made(Kept())
    assert losses(off.fit(loader, epochs=1, log_every=False)) == []


def test_the_loss_of_a_skipped_batch_is_that_of_the_next_one() -> None:
    class Skip(Callback):
        def before_train_iter(self, run: Run) -> None:
            if run.batch_idx == 2:
                run.skip_batch()

    history = made(Skip(), Accumulate(2)).fit(tiny_loader(40), epochs=1, log_every="1 step")
    assert losses(history)


@pytest.mark.parametrize("wrong", ["2 epochs", "often", 0, "5 samples"])
def test_log_every_counts_steps_or_time(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="log_every"):
        made().fit(tiny_loader(), epochs=1, log_every=wrong)


# Resuming -------------------------------------------------------------------------------------------------------------


class Oops(Exception):
    """Ends a run in these tests."""


class Logs(Callback):
    """Logs in every way, of a part of the iterations; raises in one of them."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at

    def after_train_iter(self, run: Run) -> None:
        if run.batch_idx % 2 == 0:
            run.log("train/mean", run.loss)
        for over in ("sum", "max", "min", "last"):
            run.log(f"train/{over}", run.loss if run.batch_idx % 3 else float(run.batch_idx), over=over)
        if run.clock.steps == self.fails_at:
            raise Oops


@pytest.mark.parametrize("fails_at", [1, 4, 6, 9])
def test_a_resumed_pass_has_the_same_values_to_the_bit(tmp_path: Path, fails_at: int) -> None:
    whole = made(Logs()).fit(tiny_loader(40), epochs=2)
    with pytest.raises(Oops):
        made(Logs(fails_at), Checkpoint("1 step", to=tmp_path, background=False)).fit(tiny_loader(40), epochs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resumed = made(Logs(), Checkpoint("1 step", to=tmp_path, background=False)).fit(
            tiny_loader(40), epochs=2, resume="auto"
        )
    assert resumed.to_rows("all") == whole.to_rows("all")


# Several processes ----------------------------------------------------------------------------------------------------


class OverRanks(Callback):
    """Rank 0 has two batches and rank 1 one; some names are logged by one of them alone."""

    def after_train_iter(self, run: Run) -> None:
        number = 10.0 * run.rank + run.batch_idx
        for over in ("mean", "sum", "max", "min", "last"):
            run.log(f"train/{over}", number, over=over)
        if run.is_main:
            run.log("train/main", number)
        else:
            run.log("train/other", torch.tensor(number))
        run.log("train/shared", number, over_ranks="mean")


class Mine(list[Any]):
    divides_over_ranks = True


def over_ranks() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rank = int(os.environ["RANK"])
    inputs, targets = tiny_data(16, seed=3).tensors
    mine = [[(inputs[:4], targets[:4]), (inputs[4:6], targets[4:6])], [(inputs[6:], targets[6:])]][rank]
    trainer = made(OverRanks(), strategy="ddp")
    history = trainer.fit(Mine(mine), epochs=1)
    return history.to_rows("epoch"), history.to_rows("iter")


def test_values_of_all_ranks_become_one_and_nobody_waits() -> None:
    first, second = ranks(over_ranks, results="all")
    (epoch,) = first[0]
    assert first[0] == second[0]
    assert epoch["train/mean"] == pytest.approx((4 * 0 + 2 * 1 + 10 * 10) / 16)
    assert (epoch["train/sum"], epoch["train/max"], epoch["train/min"], epoch["train/last"]) == (11, 10, 0, 1)
    assert epoch["train/main"] == pytest.approx((4 * 0 + 2 * 1) / 6)
    assert epoch["train/other"] == 10
    assert [row["train/shared"] for row in first[1]] == [5.0, 1.0]
    assert [row["train/sum"] for row in first[1]] == [0.0, 1.0]


def test_gradient_stats_have_one_value_over_the_epoch() -> None:
    history = made(GradientStats("1 step")).fit(batches(), epochs=1)
    inside = [row["train/gradients/all/norm"] for row in history.iters]
    assert history["train/gradients/all/norm"] == [pytest.approx(weighted(inside))]
    assert all(math.isfinite(value) for value in inside)
