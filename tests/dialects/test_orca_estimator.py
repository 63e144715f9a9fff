"""Orca's Estimator and its ready callbacks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cadenza.dialects.orca import (
    Callback,
    Estimator,
    MainCallback,
    MaxstepsCallback,
    ModelCheckpoint,
    Runner,
    TensorBoardCallback,
    TqdmCallback,
    WandbLoggerCallback,
)
from cadenza.dialects.orca.context import invalidInputError, invalidOperationError
from cadenza.dialects.orca.metrics import (
    AUC,
    MAE,
    MSE,
    ROC,
    Accuracy,
    F1Score,
    Metric,
    Precision,
    PrecisionRecallCurve,
    Recall,
    Top5Accuracy,
)
from cadenza.testing import tiny_classifier, tiny_data, tiny_loader

from .rooms import same, trainer_with, weights


def model_creator(config: dict[str, Any]) -> nn.Module:
    return tiny_classifier(hidden=config.get("hidden", 8))


def optimizer_creator(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1))


def scheduler_creator(optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def data_creator(config: dict[str, Any], batch_size: int) -> DataLoader[Any]:
    return tiny_loader(24, batch_size)


def estimator(**options: Any) -> Estimator:
    given = {"model": model_creator, "optimizer": optimizer_creator, "loss": nn.CrossEntropyLoss(), "backend": "local"}
    return Estimator.from_torch(**(given | options))


def test_fit_returns_statistics_and_trains_as_the_native_trainer() -> None:
    one = estimator(metrics=[Accuracy()], config={"lr": 0.05})
    rows = one.fit(data_creator, epochs=2, batch_size=8, validation_data=data_creator)
    assert [(row["epoch"], row["batch_count"]) for row in rows] == [(1, 3), (2, 3)]
    assert 0 <= rows[-1]["val_accuracy"] <= 1
    native, data = trainer_with(lr=0.05), tiny_data()
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=1, rank=0)
    history = native.fit(DataLoader(data, batch_size=8, sampler=sampler), tiny_loader(), epochs=2)
    assert [row["val_loss"] for row in rows] == pytest.approx(history["val/loss"])
    assert same(weights(one.get_model()), weights(native.model))


def test_fit_reads_in_the_order_of_a_distributed_sampler_and_evaluate_in_that_of_the_loader() -> None:
    seen: dict[str, list[list[int]]] = {"train": [], "val": []}
    numbers = TensorDataset(tiny_data(24).tensors[0], torch.arange(24) % 2, torch.arange(24))

    class Reads(MainCallback):
        def on_iter_forward(self, runner: Runner) -> None:
            inputs, runner.target, number = runner.batch
            seen[str(runner.run.stage)] += number.tolist()
            runner.output = runner.model(inputs)
            runner.loss = runner.criterion(runner.output, runner.target)

    def create(config: dict[str, Any], batch_size: int) -> DataLoader[Any]:
        return DataLoader(numbers, batch_size=batch_size)

    def order(epoch: int) -> list[int]:
        sampler: DistributedSampler[Any] = DistributedSampler(numbers, num_replicas=1, rank=0, shuffle=True)
        sampler.set_epoch(epoch)
        return list(sampler)

    one = estimator()
    for epochs in (2, 1):
        one.fit(create, epochs=epochs, batch_size=8, validation_data=create, callbacks=[Reads()])
    assert seen == {"train": [*order(0), *order(1), *order(2)], "val": order(0) * 3}
    seen["val"].clear()
    one.evaluate(create, batch_size=8, callbacks=[Reads()])
    assert seen["val"] == list(range(24))


def test_the_tutorials_epoch_and_counters_of_the_users_own() -> None:
    seen: list[Any] = []

    class Counts(Callback):
        def before_run(self, runner: Runner) -> None:
            runner.num_steps = 0
            seen.append(runner.epoch)

        def after_train_iter(self, runner: Runner) -> None:
            runner.num_steps += 1

        def after_train_epoch(self, runner: Runner) -> None:
            seen.append((runner.epoch, runner.num_steps))

    estimator().fit(data_creator, epochs=2, batch_size=8, callbacks=[Counts()])
    assert seen == [0, (1, 3), (2, 6)]


def test_checks_raise_and_say_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match="the folder is full"):
        invalidInputError(False, "the folder is full", "choose another")
    assert "the folder is full; choose another" in caplog.text
    with pytest.raises(KeyError):
        invalidOperationError(False, "it is not there", cause=KeyError("key"))
    invalidInputError(True, "all is well")


def test_curves_and_micro_averages() -> None:
    scores, targets = torch.tensor([0.9, 0.2, 0.6, 0.4]), torch.tensor([1, 0, 0, 1])
    for metric, expected in ((Precision(), 0.5), (Recall(), 0.5), (F1Score(), 0.5), (AUC(), 0.75)):
        metric(scores, targets)
        assert float(metric.compute()) == expected
        assert metric.get_pytorch_metric() is not metric
    wrong, right, _ = in_halves(ROC(), scores, targets)
    assert (wrong.tolist(), right.tolist()) == ([0, 0, 0.5, 0.5, 1], [0, 0.5, 0.5, 1, 1])
    precision, recall, _ = in_halves(PrecisionRecallCurve(), scores, targets)
    assert precision.tolist() == pytest.approx([2 / 3, 0.5, 1, 1])
    assert recall.tolist() == [1, 0.5, 0.5, 0]


def in_halves(metric: Metric, scores: torch.Tensor, targets: torch.Tensor) -> Any:
    for part in (slice(0, 2), slice(2, None)):
        metric(scores[part], targets[part])
    return metric.compute()


def test_evaluate_and_predict() -> None:
    one = estimator(metrics=[Accuracy(), agreement])
    found = one.evaluate(data_creator, batch_size=7)
    assert found["num_samples"] == 24
    outputs = one.predict(data_creator, batch_size=5)
    assert isinstance(outputs, np.ndarray)
    inputs, targets = tiny_data().tensors
    expected = tiny_classifier()(inputs).detach()
    assert torch.allclose(torch.from_numpy(outputs), expected)
    assert found["Accuracy"] == pytest.approx(float((expected.argmax(1) == targets).float().mean()))
    assert found["agreement"] == pytest.approx(found["Accuracy"])
    assert found["val_loss"] == pytest.approx(float(nn.functional.cross_entropy(expected, targets)), rel=1e-5)


def agreement(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == target).float()


def test_num_steps_limits_an_evaluation_and_is_seen_there() -> None:
    seen = []

    class Look(Callback):
        def before_val_iter(self, runner: Runner) -> None:
            seen.append(runner.num_steps)

    row = estimator().evaluate(data_creator, batch_size=8, num_steps=2, callbacks=[Look()])
    assert row["num_samples"] == 16
    assert seen == [2, 2]


def test_a_loss_may_be_made_from_the_config() -> None:
    def loss_creator(config: dict[str, Any]) -> nn.Module:
        return nn.CrossEntropyLoss(label_smoothing=config["smoothing"])

    first = estimator(loss=loss_creator, config={"smoothing": 0.2}).evaluate(data_creator)
    second = estimator(loss=nn.CrossEntropyLoss(label_smoothing=0.2)).evaluate(data_creator)
    third = estimator(loss=lambda output, target: nn.functional.cross_entropy(output, target, label_smoothing=0.2))
    assert first["val_loss"] == second["val_loss"] == third.evaluate(data_creator)["val_loss"]


def test_a_second_fit_goes_on_with_epochs_steps_and_what_callbacks_put() -> None:
    seen: list[Any] = []

    class Look(Callback):
        def before_run(self, runner: Runner) -> None:
            seen.append((runner.epochs, runner.global_step, runner.num_epochs, runner._kept.get("mine")))
            runner.update("mine", len(seen))

    one, callbacks = estimator(), [Look()]
    for _ in range(2):
        one.fit(data_creator, epochs=2, batch_size=8, callbacks=callbacks)
    assert seen == [(0, 0, 2, None), (2, 6, 2, 1)]
    assert len(callbacks) == 1


def test_save_load_and_checkpoints(tmp_path: Path) -> None:
    one = estimator(scheduler_creator=scheduler_creator)
    one.fit(data_creator, epochs=2, batch_size=8)
    one.save(str(tmp_path / "weights.pt"))
    one.save_checkpoint(str(tmp_path / "all.ckpt"))
    one.fit(data_creator, epochs=1, batch_size=8)
    other = estimator(scheduler_creator=scheduler_creator)
    other.load(str(tmp_path / "weights.pt"))
    assert not same(weights(one.get_model()), weights(other.get_model()))
    other.load_checkpoint(str(tmp_path / "all.ckpt"))
    rows = other.fit(data_creator, epochs=1, batch_size=8)
    assert rows[0]["epoch"] == 3
    assert same(weights(one.get_model()), weights(other.get_model()))
    with pytest.raises(ValueError, match="entire=True would pickle"):
        one.save(str(tmp_path / "x"), entire=True)
    one.shutdown()


def test_profile_and_unreduced_results() -> None:
    one = estimator()
    rows = one.fit(data_creator, epochs=1, profile=True, validation_data=data_creator)
    names = ("train_epoch", "fwd", "bwd", "validation", "eval_fwd")
    assert sorted(rows[0]["profile"]) == sorted(f"mean_{name}_s" for name in names)
    assert rows[0]["profile"]["mean_train_epoch_s"] > rows[0]["profile"]["mean_fwd_s"] > 0

    class Times(Callback):
        def after_val_iter(self, runner: Runner) -> None:
            with runner.timers.record("mine"):
                pass

    found = one.evaluate(data_creator, profile=True, callbacks=[Times()])
    assert sorted(found["profile"]) == ["mean_eval_fwd_s", "mean_mine_s", "mean_validation_s"]
    assert "profile" not in one.evaluate(data_creator)
    assert estimator().fit(data_creator, epochs=1, reduce_results=False)[0][0]["epoch"] == 1


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: estimator(model=tiny_classifier()), "model is a function that makes it in each worker, not Sequen"),
        (lambda: estimator(backend="horovod"), "backend is one of local, ray, spark, not 'horovod'"),
        (lambda: estimator(config={"batch_size": 3}), "batch_size is an argument of fit"),
        (lambda: estimator(workers_per_node=0), "workers_per_node must be at least 1"),
        (lambda: estimator().fit({"x": 1}), "data is a function"),
        (lambda: estimator().fit(data_creator, feature_cols=["a"]), "feature_cols and label_cols select columns"),
        (lambda: Estimator.from_mmcv(mmcv_runner_creator=None), "orca: from_mmcv is not carried"),
        (lambda: ModelCheckpoint(), "say where checkpoints go"),
        (lambda: ModelCheckpoint("a", interval=0), "0 would never save"),
        (lambda: TensorBoardCallback(), "say where the events go"),
        (lambda: TensorBoardCallback("x", freq="often"), "freq is"),
        (lambda: MaxstepsCallback(0), "max_step must be at least 1"),
    ],
)
def test_what_is_refused(act: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError), match=message):
        act()


def test_two_main_callbacks_are_refused_and_leave_the_estimator_usable() -> None:
    one = estimator()
    with pytest.raises(ValueError, match="are main callbacks"):
        one.fit(data_creator, callbacks=[MainCallback(), MainCallback()])
    assert len(one.fit(data_creator, epochs=1)) == 1


# Ready callbacks -----------------------------------------------------------------------------------------------------


def test_checkpoints_by_epoch_and_by_iteration(tmp_path: Path) -> None:
    folder = str(tmp_path / "epochs")
    one = estimator()
    one.fit(data_creator, epochs=4, batch_size=8, callbacks=[ModelCheckpoint(f"{folder}/{{epoch}}", interval=2)])
    assert sorted(os.listdir(folder)) == ["epoch=2.ckpt", "epoch=4.ckpt", "last.ckpt"]
    assert torch.load(f"{folder}/epoch=2.ckpt", weights_only=True)["epoch"] == 2
    iterations = str(tmp_path / "iterations")
    saving = ModelCheckpoint(f"{iterations}/at-{{iter}}", by_epoch=False, interval=2, save_weights_only=True)
    estimator().fit(data_creator, epochs=2, batch_size=8, callbacks=[saving])
    assert sorted(os.listdir(iterations)) == ["at-iter=2.ckpt", "at-iter=4.ckpt", "at-iter=6.ckpt", "last.ckpt"]
    assert Estimator.latest_checkpoint(folder) == f"{folder}/last.ckpt"
    with pytest.raises(FileNotFoundError, match=r"no last\.ckpt"):
        Estimator.latest_checkpoint(str(tmp_path))


def test_a_folder_with_checkpoints_is_refused_unless_the_run_goes_on_from_one(tmp_path: Path) -> None:
    callbacks = [ModelCheckpoint(str(tmp_path / "{epoch}"))]
    one = estimator()
    one.fit(data_creator, epochs=1, callbacks=callbacks)
    with pytest.raises(FileExistsError, match="holds checkpoints of another run"):
        estimator().fit(data_creator, epochs=1, callbacks=[ModelCheckpoint(str(tmp_path / "{epoch}"))])
    again = estimator()
    again.load_checkpoint(str(tmp_path / "last.ckpt"))
    again.fit(data_creator, epochs=1, callbacks=[ModelCheckpoint(str(tmp_path / "{epoch}"))])
    assert (tmp_path / "epoch=2.ckpt").exists()


def test_max_steps_trains_so_many_batches_in_each_fit() -> None:
    one = estimator()
    assert [row["batch_count"] for row in one.fit(data_creator, max_steps=4, batch_size=8)] == [3, 1]
    callbacks = [MaxstepsCallback(5)]
    for _ in range(2):
        assert [row["batch_count"] for row in one.fit(data_creator, batch_size=8, callbacks=callbacks)] == [3, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("freq", "steps"), [("epoch", [1, 2]), ("batch", [0, 1, 2, 3, 4, 5]), (2, [0, 2, 3, 5])])
def test_tensorboard_gets_the_loss_as_often_as_freq_says(freq: Any, steps: list[int], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = TensorBoardCallback(str(tmp_path), freq=freq, filename_suffix=".mine")
    estimator().fit(data_creator, epochs=2, batch_size=8, callbacks=[callback])
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("train_loss")] == steps
    assert [name for name in os.listdir(tmp_path) if name.endswith(".mine")]


def test_tensorboard_events_behind_a_remote_path(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    callback = TensorBoardCallback(f"file://{tmp_path}/remote")
    estimator().fit(data_creator, epochs=1, callbacks=[callback])
    assert [name for name in os.listdir(tmp_path / "remote") if "tfevents" in name]


def test_checkpoints_behind_a_remote_path(tmp_path: Path) -> None:
    class Save(Callback):
        def after_run(self, runner: Runner) -> None:
            path = f"file://{tmp_path}/remote.ckpt"
            runner.save_checkpoint(path)
            runner.load_checkpoint(path)
            runner.remove_checkpoint(path)

    estimator().fit(data_creator, epochs=1, callbacks=[Save()])
    assert not os.listdir(tmp_path)


@pytest.mark.long
def test_wandb_logs_each_epoch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    logged = []

    class Look(Callback):
        def after_train_epoch(self, runner: Runner) -> None:
            logged.append((wandb.run is not None, dict(wandb.run.config)))

    wandb = WandbLoggerCallback("project", log_config=True, mode="disabled")
    estimator(config={"lr": 0.1}).fit(data_creator, epochs=2, callbacks=[wandb, Look()])
    assert logged == [(True, {"lr": 0.1})] * 2
    assert wandb.run is None


def test_progress_bars_count_on_in_a_further_fit(capsys: pytest.CaptureFixture[str]) -> None:
    estimator(use_tqdm=True).fit(data_creator, epochs=2, batch_size=8, validation_data=data_creator)
    estimator().predict(data_creator, callbacks=[TqdmCallback()])
    again = estimator(use_tqdm=True)
    for _ in range(2):
        again.fit(data_creator, epochs=1, batch_size=8)
    shown = capsys.readouterr().err
    assert "epoch 2/2: 100%" in shown.rsplit("prediction", 1)[-1]  # a further fit counts on
    for line in ("epoch 1/2: 100%", "epoch 2/2: 100%", "validation: 100%", "prediction: 100%", "loss="):
        assert line in shown


def test_metrics_compute_what_they_are_named_after() -> None:
    output, target = torch.tensor([[1.0], [2.0]]), torch.tensor([0.0, 4.0])
    for metric, expected in ((MSE(), 2.5), (MAE(), 1.5)):
        metric.update(output, target)
        assert float(metric.compute()) == expected
    top = Top5Accuracy()
    top.update(torch.eye(8), torch.arange(8))
    assert float(top.compute()) == 1
    binary = Accuracy()
    binary.update(torch.tensor([0.2, 0.8]), torch.tensor([0.0, 0.0]))
    assert float(binary.compute()) == 0.5
