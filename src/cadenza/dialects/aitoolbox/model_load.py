"""Going on with a training that was saved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cadenza.dialects.aitoolbox.abstract import AbstractExperimentCallback
from cadenza.dialects.aitoolbox.folders import experiment_folder, load_state

__all__ = ["ModelLoadContinueTraining"]


class ModelLoadContinueTraining(AbstractExperimentCallback):
    """Loads a saved model, its optimizer and schedules, and goes on with the epoch after it. The count of batches goes
    on, too; the history begins anew. ``details`` are those of the experiment, as ``AbstractExperimentCallback`` takes
    them."""

    def __init__(
        self, saved_experiment_timestamp: str, saved_model_dir: str = "checkpoint_model", epoch_num: int | None = None,
        ignore_saved_schedulers: bool = False, ignore_missing_saved_schedulers: bool = False,
        used_data_parallel: bool = False, custom_local_loader_class: Any = None, *details: Any, **named: Any,
    ) -> None:  # fmt: skip
        super().__init__("Load a saved model and go on", *details, **named)
        self.execution_order = -10
        if custom_local_loader_class is not None:
            raise TypeError(
                "aitoolbox: custom_local_loader_class is not carried: a checkpoint is read with "
                "torch.load(weights_only=True)"
            )
        self.saved_experiment_timestamp, self.saved_model_dir = saved_experiment_timestamp, saved_model_dir
        self.epoch_num, self.used_data_parallel = epoch_num, used_data_parallel
        self.ignore_saved_schedulers = ignore_saved_schedulers
        self.ignore_missing_saved_schedulers = ignore_missing_saved_schedulers
        self.schedulers: list[dict[str, Any]] | None = None

    def on_train_loop_registration(self) -> None:
        self.try_infer_experiment_details()
        state = load_state(self.saved_file())
        loop = self.train_loop_obj
        weights = state["model_state_dict"]
        if self.used_data_parallel:
            weights = {name.removeprefix("module."): value for name, value in weights.items()}
        loop.model.load_state_dict(weights)
        loop.optimizer.load_state_dict(state["optimizer_state_dict"])
        if loop.amp_scaler is not None and "amp" in state:
            loop.amp_scaler.load_state_dict(state["amp"])
        loop.epoch, loop.run.clock.batches = state["epoch"] + 1, state["iteration_idx"] + 1
        loop._total = state["iteration_idx"]
        self.schedulers = state["schedulers_state_dict"]

    def on_train_begin(self) -> None:
        found, saved = self.train_loop_obj.get_schedulers(), self.schedulers or []
        differ = len(found) != len(saved)
        if self.ignore_saved_schedulers or (differ and self.ignore_missing_saved_schedulers):
            return
        if differ:
            raise ValueError(
                f"the checkpoint holds {len(saved)} schedulers and this loop has {len(found)}; "
                "ignore_saved_schedulers=True or ignore_missing_saved_schedulers=True lets it pass"
            )
        for scheduler, state in zip(found, saved, strict=True):
            scheduler.load_state_dict({**scheduler.state_dict(), **state})

    def saved_file(self) -> Path:
        folder = experiment_folder(self, self.saved_experiment_timestamp) / self.saved_model_dir
        files = sorted(folder.glob("model_*.pth"), key=_epoch_of)
        if self.epoch_num is not None:
            files = [file for file in files if _epoch_of(file)[0] == self.epoch_num]
        if not files:
            wanted = "" if self.epoch_num is None else f" of epoch {self.epoch_num}"
            raise FileNotFoundError(f"there is no saved model{wanted} in {folder}")
        return files[-1]


def _epoch_of(file: Path) -> tuple[int, float]:
    """Epoch and batch of a file by its name; the one that was saved at the end of the epoch is its last."""
    found = re.search(r"_E(\d+)(?:_ITER(\d+))?$", file.stem)
    if found is None:
        return -1, 0
    return int(found[1]), float(found[2]) if found[2] else float("inf")
