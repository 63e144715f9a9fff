"""Callbacks that save models, in AIToolbox's folders and file names."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cadenza.dialects.aitoolbox.abstract import AbstractExperimentCallback
from cadenza.dialects.aitoolbox.folders import describe, draw_history, folder_of, plain_state, save_state, upload
from cadenza.dialects.aitoolbox.results import AbstractResultPackage
from cadenza.foundation.whole_files import write_whole

__all__ = ["ModelCheckpoint", "ModelIterationCheckpoint", "ModelTrainEndSave"]


class SavesModel(AbstractExperimentCallback):
    """Writes the model of the loop, with all that is needed to go on, and once what the experiment was made from."""

    def __init__(self, callback_name: str, hyperparams: Mapping[str, Any] | None, *details: Any) -> None:
        super().__init__(callback_name, *details)
        self.hyperparams = dict(hyperparams or {})
        self.described = False

    def on_train_loop_registration(self) -> None:
        self.try_infer_experiment_details()
        if not self.train_loop_obj.lazy_experiment_save:
            self.describe()

    def describe(self) -> None:
        """Writes the hyper-parameters, the script and the sources, once."""
        if not self.described and self.train_loop_obj.is_main_process():
            self.described = True
            script = getattr(sys.modules.get("__main__"), "__file__", None)
            upload(self, *describe(folder_of(self), self.hyperparams, script, self.train_loop_obj.source_dirs))

    def path(self, folder: str, ending: str = "") -> Path:
        name = f"model_{self.experiment_name}_{self.train_loop_obj.experiment_timestamp}{ending}.pth"
        return folder_of(self) / folder / name

    def write_model(self, path: Path) -> Path:
        self.describe()
        loop = self.train_loop_obj
        state = {
            "model_state_dict": loop.model.state_dict(), "optimizer_state_dict": loop.optimizer.state_dict(),
            "schedulers_state_dict": [plain_state(one.state_dict()) for one in loop.get_schedulers()],
            "epoch": loop.epoch, "iteration_idx": loop.total_iteration_idx, "hyperparams": self.hyperparams,
        }  # fmt: skip
        if loop.use_amp:
            state["amp"] = loop.amp_scaler.state_dict()
        save_state(path, state)
        upload(self, path)
        return path


class ModelCheckpoint(SavesModel):
    """Saves at the end of every epoch. With ``rm_subopt_local_models`` (True for "loss", or the name of a metric) only
    the ``num_best_checkpoints_kept`` best stay; what is called a loss is better when it is lower."""

    def __init__(
        self, project_name: str | None = None, experiment_name: str | None = None,
        local_model_result_folder_path: str | None = None, hyperparams: Mapping[str, Any] | None = None,
        cloud_save_mode: str | None = "s3", bucket_name: str = "model-result", cloud_dir_prefix: str = "",
        rm_subopt_local_models: bool | str = False, num_best_checkpoints_kept: int = 2,
    ) -> None:  # fmt: skip
        details = (project_name, experiment_name, local_model_result_folder_path, cloud_save_mode, bucket_name)
        super().__init__("Model checkpoint", hyperparams, *details, cloud_dir_prefix, 100, 0)
        self.metric = "loss" if rm_subopt_local_models is True else rm_subopt_local_models
        self.num_best_checkpoints_kept = num_best_checkpoints_kept
        self.kept: list[tuple[float, Path]] = []

    def on_epoch_end(self) -> None:
        path = self.write_model(self.path("checkpoint_model", f"_E{self.train_loop_obj.epoch}"))
        if self.metric:
            self.remove_all_but_best(path)

    def remove_all_but_best(self, path: Path) -> None:
        values = self.train_loop_obj.train_history[str(self.metric)]
        if not values:
            return
        sign = 1.0 if "loss" in str(self.metric) else -1.0
        ranked = sorted([*self.kept, (sign * float(values[-1]), path)], key=lambda one: one[0])
        self.kept = ranked[: self.num_best_checkpoints_kept]
        for _, poor in ranked[self.num_best_checkpoints_kept :]:
            poor.unlink(missing_ok=True)


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
            self.write_model(self.path("checkpoint_model", f"_E{loop.epoch}_ITER{iteration}"))


class ModelTrainEndSave(SavesModel):
    """Saves the trained model, and what the result packages say of it on the validation and test sets."""

    def __init__(
        self, project_name: str | None = None, experiment_name: str | None = None,
        local_model_result_folder_path: str | None = None, hyperparams: Mapping[str, Any] | None = None,
        val_result_package: AbstractResultPackage | None = None,
        test_result_package: AbstractResultPackage | None = None, cloud_save_mode: str | None = "s3",
        bucket_name: str = "model-result", cloud_dir_prefix: str = "",
    ) -> None:  # fmt: skip
        details = (project_name, experiment_name, local_model_result_folder_path, cloud_save_mode, bucket_name)
        super().__init__("Model save at the end of training", hyperparams, *details, cloud_dir_prefix, 101)
        if val_result_package is None and test_result_package is None:
            raise ValueError("give val_result_package, test_result_package or both")
        self.packages = {"val": val_result_package, "test": test_result_package}

    def on_train_end(self) -> None:
        loop, experiment, results = self.train_loop_obj, str(self.experiment_name), folder_of(self) / "results"
        given = {name: package for name, package in self.packages.items() if package is not None}
        for name, package in given.items():
            predict = loop.predict_on_validation_set if name == "val" else loop.predict_on_test_set
            package.prepare_from(predict(), self.hyperparams, loop.train_history)
        if not loop.is_main_process():
            return
        self.write_model(self.path("model"))
        found = {f"{one.pkg_name}_{name.upper()}": one for name, one in reversed(given.items())}
        last = next(iter(found.values()))
        results_by_name = {name: one.get_results() for name, one in found.items()}
        content = {
            "experiment_name": experiment, "experiment_results_local_path": str(results),
            "results": results_by_name if len(found) > 1 else last.get_results(),
            "y_true": last.y_true, "y_predicted": last.y_predicted,
            "hyperparameters": self.hyperparams, "training_history": dict(loop.train_history.items()),
        }  # fmt: skip
        path = results / f"results_hyperParams_hist_{experiment}_{loop.experiment_timestamp}.p"
        write_whole(path, pickle.dumps(content))
        upload(self, path, *draw_history(loop.train_history, results / "plots", "png"))
