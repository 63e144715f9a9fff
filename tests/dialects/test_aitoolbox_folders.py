"""The folders of AIToolbox's experiments: what lies where, and going on from it."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza.dialects.aitoolbox import (
    ClassificationResultPackage,
    GradDistributionPlot,
    ModelLoadContinueTraining,
    ModelTrainHistoryFileWriter,
    ModelTrainHistoryPlot,
    StepLRScheduler,
    TensorboardTrainBatchLoss,
    TrainLoopCheckpoint,
    TrainLoopCheckpointEndSave,
    TrainLoopEndSave,
)
from cadenza.testing import tiny_classifier, tiny_loader


def made(kind: type[Any], root: Path, **options: Any) -> Any:
    torch.manual_seed(0)
    model = tiny_classifier()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    loaders = [tiny_loader(24, batch_size=8) for _ in range(3)]
    details = ("digits", "cnn", str(root), {"lr": 0.01, "layers": [4, 3]})
    options = {"cloud_save_mode": "local", **options}
    return kind(model, *loaders, adam, nn.CrossEntropyLoss(), *details, **options)


def files(root: Path) -> list[str]:
    return sorted(str(file.relative_to(root)) for file in root.rglob("*") if file.is_file())


def test_checkpoints_every_epoch_in_the_layout(tmp_path: Path) -> None:
    loop = made(TrainLoopCheckpoint, tmp_path)
    loop.fit(num_epochs=2)
    stamp = loop.experiment_timestamp
    folder = f"digits/cnn_{stamp}"
    found = [name for name in files(tmp_path) if not name.endswith(".py")]
    assert [name for name in found if "checkpoint_model" in name] == [
        f"{folder}/checkpoint_model/model_cnn_{stamp}_E0.pth",
        f"{folder}/checkpoint_model/model_cnn_{stamp}_E1.pth",
    ]
    assert f"{folder}/hyperparams_list.txt" in found
    state = torch.load(tmp_path / found[1], weights_only=True)
    assert set(state) == {
        "model_state_dict",
        "optimizer_state_dict",
        "schedulers_state_dict",
        "epoch",
        "iteration_idx",
        "hyperparams",
    }
    assert (state["epoch"], state["iteration_idx"], state["hyperparams"]["layers"]) == (1, 5, [4, 3])
    for name, value in loop.model.state_dict().items():
        assert torch.equal(state["model_state_dict"][name], value)


def test_only_the_best_are_kept(tmp_path: Path) -> None:
    loop = made(TrainLoopCheckpoint, tmp_path, rm_subopt_local_models=True, num_best_checkpoints_kept=2)
    loop.fit(num_epochs=4)
    losses = loop.train_history["loss"]
    best = sorted(sorted(range(4), key=lambda epoch: losses[epoch])[:2])
    kept = [name for name in files(tmp_path) if "checkpoint_model" in name]
    assert [name.split("_E")[-1] for name in kept] == [f"{epoch}.pth" for epoch in best]


def test_checkpoints_of_iterations(tmp_path: Path) -> None:
    made(TrainLoopCheckpoint, tmp_path, iteration_save_freq=2).fit(num_epochs=2)
    endings = [name.split("Z")[-1].rsplit("_E", 1)[-1] for name in files(tmp_path) if "checkpoint_model" in name]
    assert sorted(endings) == ["0.pth", "0_ITER2.pth", "1.pth", "1_ITER4.pth"]


def test_the_end_is_saved_with_results(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "model.py").write_text("x = 1\n")
    loop = made(
        TrainLoopEndSave,
        tmp_path,
        val_result_package=ClassificationResultPackage(),
        test_result_package=ClassificationResultPackage(),
        source_dirs=[str(sources)],
    )
    loop.fit(num_epochs=1)
    folder = tmp_path / "digits" / f"cnn_{loop.experiment_timestamp}"
    stored = folder / "results" / f"results_hyperParams_hist_cnn_{loop.experiment_timestamp}.p"
    results = pickle.loads(stored.read_bytes())
    assert set(results["results"]) == {"ClassificationResult_VAL", "ClassificationResult_TEST"}
    assert results["hyperparameters"] == {"lr": 0.01, "layers": [4, 3]}
    assert results["training_history"]["val_loss"] == loop.train_history["val_loss"]
    assert (folder / "model" / f"model_cnn_{loop.experiment_timestamp}.pth").is_file()
    assert zipfile.ZipFile(folder / "source_code.zip").namelist() == ["sources/model.py"]
    with pytest.raises(ValueError, match="give val_result_package, test_result_package or both"):
        made(TrainLoopEndSave, tmp_path)


def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_ended(tmp_path: Path) -> None:
    whole = made(TrainLoopCheckpoint, tmp_path / "whole")
    whole.fit(num_epochs=4, callbacks=[StepLRScheduler(2)])
    first = made(TrainLoopCheckpointEndSave, tmp_path / "parts", val_result_package=ClassificationResultPackage())
    first.fit(num_epochs=2, callbacks=[StepLRScheduler(2)])
    again = made(TrainLoopCheckpoint, tmp_path / "parts")
    load = ModelLoadContinueTraining(first.experiment_timestamp)
    again.fit(num_epochs=4, callbacks=[load, StepLRScheduler(2)])
    assert (again.epoch, again.total_iteration_idx) == (3, 11)
    assert len(again.train_history["loss"]) == 2
    for mine, theirs in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert again.optimizer.param_groups[0]["lr"] == pytest.approx(0.0001)


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    loop = made(TrainLoopCheckpoint, tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no saved model of epoch 7"):
        loop.fit(num_epochs=1, callbacks=[ModelLoadContinueTraining("2020-01-01_00-00-00", epoch_num=7)])


def test_pictures_tables_and_events_lie_in_the_folder(tmp_path: Path) -> None:
    loop = made(TrainLoopCheckpoint, tmp_path)
    messages: list[Any] = []
    loop.fit(
        num_epochs=2,
        callbacks=[
            ModelTrainHistoryPlot(),
            ModelTrainHistoryFileWriter(file_format="csv"),
            GradDistributionPlot(lambda model: [model[0], model[2]]),
            TensorboardTrainBatchLoss(),
        ],
    )
    folder = tmp_path / "digits" / f"cnn_{loop.experiment_timestamp}"
    assert files(folder / "results") == [
        "grad_distribution/epoch_0.png",
        "grad_distribution/epoch_1.png",
        "plots_epoch_1/accumulated_loss.png",
        "plots_epoch_1/loss.png",
        "plots_epoch_1/val_loss.png",
        "results.csv",
    ]
    assert len((folder / "results" / "results.csv").read_text().splitlines()) == 3
    assert any("tfevents" in name for name in files(folder / "tensorboard"))
    assert messages == []


def test_hyperparameters_that_would_have_to_be_pickled_are_refused(tmp_path: Path) -> None:
    loop = made(TrainLoopCheckpoint, tmp_path)
    loop.hyperparams["made"] = object()
    loop.callbacks[0].hyperparams["made"] = object()
    with pytest.raises(TypeError, match=r"\['hyperparams'\]\['made'\] is a object; a checkpoint holds tensors"):
        loop.fit(num_epochs=1)


def test_an_unknown_cloud_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cloud_save_mode is 's3'.* not 'ftp'"):
        made(TrainLoopCheckpoint, tmp_path, cloud_save_mode="ftp")
