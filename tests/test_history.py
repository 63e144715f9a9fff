"""What was logged is what is read, whenever it is read; it can be exported, and its state goes round."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import History, Run, Trainer
from cadenza.history import Metrics
from cadenza.resume.collect import alike
from cadenza.testing import tiny_classifier, tiny_loader


def inside(history: History, name: str) -> list[float]:
    """The values that iterations logged."""
    return [row[name] for row in history.iters if name in row]


def made(**more: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), device="cpu", **more)


# Values --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0),
        (True, 1.0),
        (0.1, 0.1),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([[7]]), 7.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.tensor(0.1, dtype=torch.float64), 0.1),
        (nn.Parameter(torch.tensor(2.0)), 2.0),
    ],
    ids=str,
)
def test_every_scalar_becomes_a_number(value: Any, number: float) -> None:
    metrics = Metrics()
    metrics["mine"] = value
    assert metrics["mine"] == number
    assert type(metrics["mine"]) is float


def test_a_value_is_the_one_at_the_time_of_logging() -> None:
    """A tensor that changes later, such as a weight or a running sum, does not change what was logged."""
    trainer, seen = made(), []

    @trainer.on("after_forward")
    def log(run: Run) -> None:
        weight = run.module[0].weight[0, 0]
        run.log("weight", weight)
        seen.append(weight.item())

    history = trainer.fit(tiny_loader(), epochs=1)
    assert len(set(seen)) == 3
    assert inside(history, "weight") == seen


def test_a_running_sum_is_logged_as_it_stood() -> None:
    trainer, total = made(), torch.zeros(())

    @trainer.on("after_train_iter")
    def log(run: Run) -> None:
        total.add_(1)
        run.log("total", total)

    assert inside(trainer.fit(tiny_loader(), epochs=1), "total") == [1.0, 2.0, 3.0]


def test_nothing_is_read_before_somebody_looks() -> None:
    trainer, raw = made(), []
    trainer.on("after_loss")(lambda run: run.log("mine", run.loss))
    trainer.on("after_train_iter")(lambda run: raw.append(run.metrics.raw()["mine"]))
    history = trainer.fit(tiny_loader(), epochs=1)
    assert all(isinstance(value, torch.Tensor) and not value.requires_grad for value in raw)
    assert inside(history, "mine") == [float(value) for value in raw]


def test_not_a_number_and_infinity_are_kept() -> None:
    history = History()
    row = history.add("epoch", epoch=0)
    row["nan"], row["inf"] = torch.tensor(float("nan")), torch.tensor(float("-inf"))
    assert math.isnan(history["nan"][0])
    assert history["inf"] == [-math.inf]


def test_values_of_many_kinds_are_read_together() -> None:
    history = History()
    for index in range(4):
        row = history.add("iter", batch=index)
        row["float"] = torch.tensor(index + 0.5)
        row["int"] = torch.tensor(index)
        row["plain"] = index
    assert history["float"] == [0.5, 1.5, 2.5, 3.5]
    assert history["int"] == history["plain"] == [0.0, 1.0, 2.0, 3.0]


def test_unknown_names_say_what_is_near() -> None:
    history = made().fit(tiny_loader(), tiny_loader(), epochs=1)
    with pytest.raises(KeyError, match=r"no metric 'val/los'; did you mean 'val/loss'.* Known: train/loss, val/loss"):
        history["val/los"]
    with pytest.raises(KeyError, match=r"no metric 'anything'\. Known: none yet"):
        Metrics()["anything"]
    assert "val/loss" in history
    assert "val/los" not in history


# Rows ----------------------------------------------------------------------------------------------------------------


def test_one_row_for_each_epoch_and_each_iteration_that_logged() -> None:
    trainer = made()

    @trainer.on("after_train_iter")
    def log(run: Run) -> None:
        if run.batch_idx != 1:
            run.log("a", run.batch_idx)
            run.log("b", 2)

    trainer.on("after_epoch")(lambda run: run.log("lr", 0.5))
    history = trainer.fit(tiny_loader(), tiny_loader(8), epochs=2)
    assert [(row["epoch"], row["a"], row["b"]) for row in history.iters] == [(0, 0, 2), (0, 2, 2), (1, 0, 2), (1, 2, 2)]
    assert [row["stage"] for row in history.iters] == ["train"] * 4
    epochs = history.epochs
    assert [(row["epoch"], row["step"], row["batch"]) for row in epochs] == [(0, 3, 3), (1, 6, 6)]
    assert all({"train/loss", "val/loss", "lr"} <= row.keys() for row in epochs)
    assert history.to_rows() == [*history.iters[:2], epochs[0], *history.iters[2:], epochs[1]]
    assert history.names() == ["a", "b", "lr", "train/loss", "val/loss"]


@pytest.mark.parametrize(
    "point", ["before_iter", "before_forward", "after_loss", "after_step", "after_train_iter", "after_iter"]
)
def test_the_row_of_an_iteration_is_the_same_wherever_it_was_logged(point: str) -> None:
    trainer = made()
    trainer.on(point)(lambda run: run.log("mine", 1.0))
    rows = trainer.fit(tiny_loader(), epochs=1).iters
    later = made()
    later.on("after_iter")(lambda run: run.log("mine", 1.0))
    assert rows == later.fit(tiny_loader(), epochs=1).iters


@pytest.mark.parametrize("name", ["epoch", "step", "batch", "kind", "stage"])
def test_a_metric_does_not_hide_where_its_row_was_written(name: str) -> None:
    trainer = made()
    trainer.on("after_train_iter")(lambda run: run.log(name, 99.0))
    with contextlib.suppress(ValueError):  # refusing the name would be as good
        trainer.fit(tiny_loader(), epochs=1)
    assert all(row[name] != 99.0 for row in trainer.history.iters)


def test_after_log_sees_each_complete_row() -> None:
    trainer, rows = made(), []
    trainer.on("after_train_iter")(lambda run: run.log("mine", run.batch_idx))
    trainer.on("after_log")(lambda run: rows.append(run.row.as_dict()))
    history = trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert rows == history.to_rows()
    assert [row["kind"] for row in rows] == ["iter", "iter", "iter", "epoch"]


def test_what_is_logged_at_the_very_end_is_told_and_belongs_to_no_new_epoch() -> None:
    trainer, rows = made(), []
    trainer.on("after_run")(lambda run: run.log("final", 1.0))
    trainer.on("after_log")(lambda run: rows.append(run.row.as_dict()))
    for _ in range(2):
        trainer.fit(tiny_loader(), epochs=1)
    assert trainer.history["final"] == [1.0, 1.0]
    assert [row["final"] for row in rows if "final" in row] == [1.0, 1.0]
    assert [row["epoch"] for row in trainer.history.to_rows() if "final" in row] == [0, 1]


def test_other_runs_do_not_write_into_the_history() -> None:
    trainer = made()
    trainer.on("after_val_epoch")(lambda run: run.log("val/mine", 4.0))
    assert trainer.validate(tiny_loader())["val/mine"] == 4.0
    trainer.test(tiny_loader())
    assert len(trainer.history) == 0


def test_a_stage_begins_without_its_old_metrics() -> None:
    trainer, seen = made(), []
    trainer.on("after_val_iter")(lambda run: run.log("val/mine", 1.0) if run.epoch == 0 else None)
    trainer.on("after_epoch")(lambda run: seen.append(sorted(run.metrics)))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=2)
    assert seen == [["train/loss", "val/loss", "val/mine"], ["train/loss", "val/loss"]]


def test_several_loaders_have_names() -> None:
    loaders = {"near": tiny_loader(8), "far": tiny_loader(8, seed=1)}
    trainer = made()
    history = trainer.fit(tiny_loader(), loaders, test_loaders={"held": tiny_loader(8)}, epochs=1)
    assert history.names() == ["test/held/loss", "train/loss", "val/far/loss", "val/near/loss"]
    metrics = trainer.validate(loaders)
    assert metrics == {f"val/{name}/loss": trainer.validate(loader)["val/loss"] for name, loader in loaders.items()}


def test_over_ranks_is_checked() -> None:
    trainer = made()
    trainer.on("before_run")(lambda run: run.log("x", 1.0, over_ranks="sum"))
    with pytest.raises(ValueError, match='over_ranks is None or "mean"'):
        trainer.fit(tiny_loader(), epochs=1)


# Test loaders and validation in between -------------------------------------------------------------------------------


def test_test_loaders_are_played_also_when_validation_counts_steps() -> None:
    history = made().fit(tiny_loader(), tiny_loader(8), test_loaders=tiny_loader(8), epochs=1, validate_every="2 steps")
    assert "test/loss" in history


# Export and state ----------------------------------------------------------------------------------------------------


def trained() -> History:
    trainer = made()
    trainer.on("after_train_iter")(lambda run: run.log("mine", run.loss))
    return trainer.fit(tiny_loader(), tiny_loader(8), epochs=2)


def test_rows_are_plain_and_fit_into_json() -> None:
    history = trained()
    assert json.loads(json.dumps(history.to_rows())) == history.to_rows()
    assert history.to_rows("epoch") == history.epochs
    assert history.to_rows("iter") == history.iters


def test_a_frame_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    history = trained()
    frame = history.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["val/loss"].tolist() == history["val/loss"]
    assert len(history.to_frame("iter")) == 6
    assert len(history.to_frame(None)) == 8


def test_state_goes_round() -> None:
    history = trained()
    state = copy.deepcopy(history.state_dict())
    other = History()
    other.add("epoch", epoch=7)["old"] = 1.0
    other.load_state_dict(state)
    assert other.to_rows() == history.to_rows()
    assert alike(other.state_dict(), history.state_dict())
    assert other["val/loss"] == history["val/loss"]


def test_the_state_does_not_follow_the_history() -> None:
    history = History()
    row = history.add("epoch", epoch=0, step=1)
    row["mine"] = 1.0
    state = history.state_dict()
    kept = copy.deepcopy(state)
    row["mine"] = 2.0
    row.at.update(step=9)
    history.add("epoch", epoch=1)
    assert alike(state, kept)


def test_a_long_history_is_packed_once_and_comes_back_whole() -> None:
    history = History()
    for step in range(2500):
        row = history.add("iter", step=step)
        row["loss"], row.complete = float(step), step != 2100
    first = history.state_dict()
    assert len(first["packed"]) == 3
    history.rows[2100]["loss"] = -1.0  # a row that is not complete may still change
    second = history.state_dict()
    assert second["packed"][0] is first["packed"][0]
    other = History()
    other.load_state_dict(second)
    assert other.to_rows() == history.to_rows()
    other.load_state_dict(history.state_dict(1500))
    assert other.to_rows() == history.to_rows()[:1500]


def test_a_history_says_what_it_holds() -> None:
    assert repr(History()) == "History(0 rows)"
    assert "val/loss" in repr(trained())


def test_a_history_is_not_gone_over() -> None:
    history = History()
    history.add("epoch", epoch=0)["train/loss"] = 0.5
    for wrong in (lambda: list(history), lambda: dict(history), lambda: history[-1]):
        with pytest.raises(TypeError, match=r'history\["train/loss"\], not by .*; the rows are history.epochs'):
            wrong()
