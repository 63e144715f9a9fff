"""The train loops: ``TrainLoop``, and those that belong to an experiment and save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cadenza.dialects.aitoolbox.abstract import CLOUD, PLACE
from cadenza.dialects.aitoolbox.folders import check_cloud
from cadenza.dialects.aitoolbox.model_save import ModelCheckpoint, ModelIterationCheckpoint, ModelTrainEndSave
from cadenza.dialects.aitoolbox.plain_loop import TrainLoop
from cadenza.dialects.aitoolbox.results import AbstractResultPackage

__all__ = ["TrainLoop", "TrainLoopCheckpoint", "TrainLoopCheckpointEndSave", "TrainLoopEndSave"]


class ExperimentLoop(TrainLoop):
    """A loop that knows its project, its experiment and the folder of its results."""

    def __init__(
        self, model: Any, train_loader: Any, validation_loader: Any, test_loader: Any, optimizer: Any, criterion: Any,
        project_name: str, experiment_name: str, local_model_result_folder_path: str, hyperparams: Mapping[str, Any],
        cloud_save_mode: str | None = "s3", bucket_name: str = "model-result", cloud_dir_prefix: str = "",
        source_dirs: Sequence[str] = (), *options: Any, **named: Any,
    ) -> None:  # fmt: skip
        check_cloud(cloud_save_mode)
        super().__init__(model, train_loader, validation_loader, test_loader, optimizer, criterion, *options, **named)
        self.project_name, self.experiment_name = project_name, experiment_name
        self.local_model_result_folder_path = local_model_result_folder_path
        self.hyperparams = dict(hyperparams)
        self.cloud_save_mode, self.bucket_name, self.cloud_dir_prefix = cloud_save_mode, bucket_name, cloud_dir_prefix
        self.source_dirs = tuple(source_dirs)

    def _details(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*PLACE, "hyperparams", *CLOUD)}

    def _checkpoint(self, subopt: bool | str, kept: int, every: int) -> None:
        options = {**self._details(), "rm_subopt_local_models": subopt, "num_best_checkpoints_kept": kept}
        self.rm_subopt_local_models, self.iteration_save_freq = subopt, every
        self._register([ModelIterationCheckpoint(every, **options) if every else ModelCheckpoint(**options)])

    def _end_save(self, validation: AbstractResultPackage | None, test: AbstractResultPackage | None) -> None:
        for name, package, loader in (("val", validation, "validation_loader"), ("test", test, "test_loader")):
            if package is not None and getattr(self, loader) is None:
                raise ValueError(f"{name}_result_package is computed over the {loader}, and this loop has none")
        self.val_result_package, self.test_result_package = validation, test
        self._register([ModelTrainEndSave(**self._details(), val_result_package=validation, test_result_package=test)])


class TrainLoopCheckpoint(ExperimentLoop):
    """Saves a checkpoint at the end of every epoch, and every ``iteration_save_freq`` batches if that is not 0."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        options = _taken(_CHECKPOINT, 14, args, kwargs)
        super().__init__(*args[:14], *args[17:], **kwargs)
        self._checkpoint(*options)


class TrainLoopEndSave(ExperimentLoop):
    """Saves the trained model and what the result packages say of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        packages = _taken(_PACKAGES, 10, args, kwargs)
        super().__init__(*args[:10], *args[12:], **kwargs)
        self._end_save(*packages)


class TrainLoopCheckpointEndSave(ExperimentLoop):
    """Saves checkpoints, and at the end the trained model and its results."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        packages, options = _taken(_PACKAGES, 10, args, kwargs), _taken(_CHECKPOINT, 16, args, kwargs)
        super().__init__(*args[:10], *args[12:16], *args[19:], **kwargs)
        self._checkpoint(*options)
        self._end_save(*packages)


_CHECKPOINT = {"rm_subopt_local_models": False, "num_best_checkpoints_kept": 2, "iteration_save_freq": 0}
_PACKAGES = {"val_result_package": None, "test_result_package": None}


def _taken(defaults: dict[str, Any], place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Arguments that were given by name, which are taken out of ``kwargs``, or by position, from ``place`` on."""
    given = dict(zip(defaults, args[place : place + len(defaults)], strict=False))
    return [kwargs.pop(name, given.get(name, default)) for name, default in defaults.items()]
