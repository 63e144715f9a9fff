"""The folder of a run, the trackers that follow it, and the report that shows it."""

from cadenza.experiment.experiment import Experiment
from cadenza.experiment.jsonl_file import CannotWrite
from cadenza.experiment.make_folder import FolderError
from cadenza.experiment.records import Record, find_run, read_run
from cadenza.experiment.report import Report, write_report
from cadenza.experiment.run_settings import deterministic
from cadenza.experiment.runs import Comparison, compare_runs, list_runs
from cadenza.experiment.secrets import masked, masked_command, masked_text
from cadenza.experiment.trackers import CSV, MLflow, Opening, TensorBoard, Tracker, Trackio, WandB
from cadenza.foundation.locking import FolderLocked
from cadenza.foundation.rng import seed_everything

__all__ = [
    "CSV",
    "CannotWrite",
    "Comparison",
    "Experiment",
    "FolderError",
    "FolderLocked",
    "MLflow",
    "Opening",
    "Record",
    "Report",
    "TensorBoard",
    "Tracker",
    "Trackio",
    "WandB",
    "compare_runs",
    "deterministic",
    "find_run",
    "list_runs",
    "masked",
    "masked_command",
    "masked_text",
    "read_run",
    "seed_everything",
    "write_report",
]
