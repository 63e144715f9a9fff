"""Train loops that belong to an experiment: they save, and do nothing else that ``TrainLoop`` does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cadenza.dialects.aitoolbox.abstract import refuse_upload
from cadenza.dialects.aitoolbox.model_save import ModelCheckpoint, ModelIterationCheckpoint, ModelTrainEndSave
from cadenza.dialects.aitoolbox.plain_loop import TrainLoop
from cadenza.dialects.aitoolbox.results import AbstractResultPackage


class ExperimentLoop(TrainLoop):
    """A loop that knows its project, its experiment and the folder of its results."""

    def __init__(
        self,
        model: Any,
        train_loader: Any,
        validation_loader: Any,
        test_loader: Any,
        optimizer: Any,
        criterion: Any,
        project_name: str,
        experiment_name: str,
        local_model_result_folder_path: str,
        hyperparams: Mapping[str, Any],
        cloud_save_mode: str | None = None,
        bucket_name: str | None = None,
        cloud_dir_prefix: str = "",
        source_dirs: tuple[str, ...] | list[str] = (),
        **options: Any,
    ) -> None:
        refuse_upload(cloud_save_mode)
        super().__init__(model, train_loader, validation_loader, test_loader, optimizer, criterion, **options)
        self.project_name, self.experiment_name = project_name, experiment_name
        self.local_model_result_folder_path = local_model_result_folder_path
        self.hyperparams = dict(hyperparams)
        self.source_dirs = tuple(source_dirs)

    def _checkpoint(self, rm_subopt_local_models: bool | str, kept: int, every: int) -> None:
        options = {
            "hyperparams": self.hyperparams,
            "rm_subopt_local_models": rm_subopt_local_models,
            "num_best_checkpoints_kept": kept,
        }
        self.rm_subopt_local_models, self.iteration_save_freq = rm_subopt_local_models, every
        self._register([ModelIterationCheckpoint(every, **options) if every else ModelCheckpoint(**options)])

    def _end_save(self, validation: AbstractResultPackage | None, test: AbstractResultPackage | None) -> None:
        self.val_result_package, self.test_result_package = validation, test
        self._register(
            [ModelTrainEndSave(hyperparams=self.hyperparams, val_result_package=validation, test_result_package=test)]
        )


class TrainLoopCheckpoint(ExperimentLoop):
    """Saves a checkpoint at the end of every epoch, and every ``iteration_save_freq`` batches if that is not 0."""

    def __init__(
        self,
        *args: Any,
        rm_subopt_local_models: bool | str = False,
        num_best_checkpoints_kept: int = 2,
        iteration_save_freq: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._checkpoint(rm_subopt_local_models, num_best_checkpoints_kept, iteration_save_freq)


class TrainLoopEndSave(ExperimentLoop):
    """Saves the trained model and what the result packages say of it."""

    def __init__(
        self,
        *args: Any,
        val_result_package: AbstractResultPackage | None = None,
        test_result_package: AbstractResultPackage | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._end_save(val_result_package, test_result_package)


class TrainLoopCheckpointEndSave(TrainLoopCheckpoint):
    """Saves checkpoints, and at the end the trained model and its results."""

    def __init__(
        self,
        *args: Any,
        val_result_package: AbstractResultPackage | None = None,
        test_result_package: AbstractResultPackage | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._end_save(val_result_package, test_result_package)
