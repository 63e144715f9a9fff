"""The train loops: what the original's ``torchtrain.train_loop`` offers."""

from cadenza.dialects.aitoolbox.experiment_loops import (
    TrainLoopCheckpoint,
    TrainLoopCheckpointEndSave,
    TrainLoopEndSave,
)
from cadenza.dialects.aitoolbox.plain_loop import TrainLoop

__all__ = ["TrainLoop", "TrainLoopCheckpoint", "TrainLoopCheckpointEndSave", "TrainLoopEndSave"]
