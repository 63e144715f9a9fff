"""Trackers: where the rows of a run go besides its folder."""

from cadenza.experiment.trackers.csv_file import CSV
from cadenza.experiment.trackers.mlflow import MLflow
from cadenza.experiment.trackers.tensorboard import TensorBoard
from cadenza.experiment.trackers.tracker import Opening, Tracker
from cadenza.experiment.trackers.trackio import Trackio
from cadenza.experiment.trackers.wandb import WandB

__all__ = ["CSV", "MLflow", "Opening", "TensorBoard", "Tracker", "Trackio", "WandB"]
