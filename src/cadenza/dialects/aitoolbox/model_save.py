"""Callbacks that save models, in AIToolbox's folders and file names."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadenza.dialects.aitoolbox.abstract import AbstractExperimentCallback
from cadenza.dialects.aitoolbox.folders import folder_of, save_state, write_hyperparameters, write_json, write_sources
from cadenza.dialects.aitoolbox.results import AbstractResultPackage

__all__ = ["ModelCheckpoint", "ModelIterationCheckpoint", "ModelTrainEndSave"]


class SavesModel(AbstractExperimentCallback):
    """Writes the model of the loop, with all that is needed to go on, and once what the experiment was made from."""

    def __init__(
        self,
        callback_name: str,
        execution_order: int,
        hyperparams: Mapping[str, Any] | None,
        *details: Any,
    ) -> None:
        super().__init__(callback_name, *details)
        self.execution_order, self.device_idx_execution = execution_order, 0
        self.hyperparams = dict(hyperparams or {})
        self.described = False

    def on_train_loop_registration(self) -> None:
        self.try_infer_experiment_details()
        if not self.train_loop_obj.lazy_experiment_save:
            self.describe()

    def describe(self) -> None:
        """Writes the hyper-parameters, the script and the sources, once."""
        if not self.described:
            self.described = True
            write_hyperparameters(self.folder, self.hyperparams)
            write_sources(self.folder, _script(), tuple(self.train_loop_obj.source_dirs))

    @property
    def folder(self) -> Path:
        return folder_of(self)

    def file_name(self, ending: str) -> str:
        return f"model_{self.experiment_name}_{self.train_loop_obj.experiment_timestamp}{ending}.pth"

    def write_model(self, path: Path) -> Path:
        self.describe()
        loop = self.train_loop_obj
        state = {
            "model_state_dict": loop.model.state_dict(),
            "optimizer_state_dict": loop.optimizer.state_dict(),
            "schedulers_state_dict": [plain_state(one.state_dict()) for one in loop.get_schedulers()],
            "epoch": loop.epoch,
            "iteration_idx": loop.total_iteration_idx,
            "hyperparams": self.hyperparams,
        }
        if loop.amp_scaler is not None:
            state["amp"] = loop.amp_scaler.state_dict()
        save_state(path, state)
        return path


class ModelCheckpoint(SavesModel):
    """Saves at the end of every epoch. With ``rm_subopt_local_models`` (True for "loss", or the name of a metric) only
    the ``num_best_checkpoints_kept`` best stay; what is called a loss is better when it is lower."""

    def __init__(
        self,
        project_name: str | None = None,
        experiment_name: str | None = None,
        local_model_result_folder_path: str | None = None,
        hyperparams: Mapping[str, Any] | None = None,
        cloud_save_mode: str | None = None,
        bucket_name: str | None = None,
        cloud_dir_prefix: str | None = None,
        rm_subopt_local_models: bool | str = False,
        num_best_checkpoints_kept: int = 2,
    ) -> None:
        place = (project_name, experiment_name, local_model_result_folder_path)
        super().__init__("Model checkpoint", 100, hyperparams, *place, cloud_save_mode, bucket_name, cloud_dir_prefix)
        self.metric = "loss" if rm_subopt_local_models is True else rm_subopt_local_models
        self.num_best_checkpoints_kept = num_best_checkpoints_kept
        self.kept: list[tuple[float, Path]] = []

    def on_epoch_end(self) -> None:
        path = self.write_model(self.folder / "checkpoint_model" / self.file_name(f"_E{self.train_loop_obj.epoch}"))
        if self.metric:
            self.remove_all_but_best(path)

    def remove_all_but_best(self, path: Path) -> None:
        values = self.train_loop_obj.train_history[str(self.metric)]
        if not values:
            return
        sign = 1.0 if "loss" in str(self.metric) else -1.0
        self.kept.append((sign * float(values[-1]), path))
        self.kept.sort(key=lambda one: one[0])
        for _, poor in self.kept[self.num_best_checkpoints_kept :]:
            poor.unlink(missing_ok=True)
        del self.kept[self.num_best_checkpoints_kept :]


class ModelIterationCheckpoint(ModelCheckpoint):
    """Saves every ``save_frequency`` batches, too."""

    def __init__(self, save_frequency: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if save_frequency < 1:
            raise ValueError(f"save_frequency is a number of batches of at least 1, not {save_frequency!r}")
        self.save_frequency = save_frequency

    def on_batch_end(self) -> None:
        loop = self.train_loop_obj
        iteration = loop.total_iteration_idx
        if iteration > 0 and iteration % self.save_frequency == 0:
            ending = f"_E{loop.epoch}_ITER{iteration}"
            self.write_model(self.folder / "checkpoint_model" / self.file_name(ending))


class ModelTrainEndSave(SavesModel):
    """Saves the trained model, and what the result packages say of it on the validation and test sets."""

    def __init__(
        self,
        project_name: str | None = None,
        experiment_name: str | None = None,
        local_model_result_folder_path: str | None = None,
        hyperparams: Mapping[str, Any] | None = None,
        val_result_package: AbstractResultPackage | None = None,
        test_result_package: AbstractResultPackage | None = None,
        cloud_save_mode: str | None = None,
        bucket_name: str | None = None,
        cloud_dir_prefix: str | None = None,
    ) -> None:
        name, cloud = "Model save at the end of training", (cloud_save_mode, bucket_name, cloud_dir_prefix)
        super().__init__(name, 101, hyperparams, project_name, experiment_name, local_model_result_folder_path, *cloud)
        if val_result_package is None and test_result_package is None:
            raise ValueError("give val_result_package, test_result_package or both")
        self.packages = {"val": val_result_package, "test": test_result_package}

    def on_train_end(self) -> None:
        loop = self.train_loop_obj
        self.write_model(self.folder / "model" / self.file_name(""))
        results: dict[str, Any] = {}
        for name, package in self.packages.items():
            if package is not None:
                predict = loop.predict_on_validation_set if name == "val" else loop.predict_on_test_set
                predictions, targets, metadata = predict()
                package.prepare_result_package(
                    targets, predictions, self.hyperparams, training_history=loop.train_history, **metadata
                )
                results[name] = package.get_results()
        content = {"results": results, "hyperparameters": self.hyperparams, "history": dict(loop.train_history.items())}
        write_json(self.folder / "results" / f"results_{self.experiment_name}.json", content)


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """What can be written of a scheduler's state: functions are made anew by its constructor."""
    return {
        name: value
        for name, value in state.items()
        if value is None or isinstance(value, int | float | str | bool | list | tuple | dict)
        if name != "lr_lambdas"
    }


def _script() -> str | None:
    return getattr(sys.modules.get("__main__"), "__file__", None)
