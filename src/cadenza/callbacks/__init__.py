"""Ready callbacks, one idea in one file. Each idea that makes sense in a loop of your own is a plain function too."""

from cadenza.callbacks.accumulate import Accumulate
from cadenza.callbacks.activation_stats import ActivationStats
from cadenza.callbacks.batch_size_finder import BatchSizeFinder, find_batch_size
from cadenza.callbacks.checkpoint import Checkpoint
from cadenza.callbacks.clip import GradientClip, clip_gradients
from cadenza.callbacks.confusion import ConfusionMatrix
from cadenza.callbacks.cost_ledger import CostLedger
from cadenza.callbacks.cutmix import CutMix, cutmix
from cadenza.callbacks.early_stopping import EarlyStopping, Patience
from cadenza.callbacks.ema import EMA
from cadenza.callbacks.evaluate import Evaluate
from cadenza.callbacks.export_check import ExportCheck
from cadenza.callbacks.extreme_batches import ExtremeBatches
from cadenza.callbacks.freeze import Freeze
from cadenza.callbacks.freeze_batchnorm import FreezeBatchNorm
from cadenza.callbacks.gradient_plot import GradientPlot
from cadenza.callbacks.gradient_stats import GradientStats
from cadenza.callbacks.hang_watch import HangWatch
from cadenza.callbacks.history_file import HistoryFile
from cadenza.callbacks.history_plot import HistoryPlot
from cadenza.callbacks.load import Load
from cadenza.callbacks.lr_finder import LRFinder, find_lr
from cadenza.callbacks.lr_monitor import LRMonitor
from cadenza.callbacks.measures import accuracy, mean_absolute_error, mean_squared_error, top_k_accuracy
from cadenza.callbacks.memory_monitor import MemoryMonitor
from cadenza.callbacks.metrics import Metrics
from cadenza.callbacks.mixup import MixUp, mixup
from cadenza.callbacks.model_summary import ModelSummary, summarize
from cadenza.callbacks.multiscale import Multiscale
from cadenza.callbacks.nan_guard import NaNGuard
from cadenza.callbacks.notify import Notify
from cadenza.callbacks.oversample import Oversample
from cadenza.callbacks.precise_batchnorm import PreciseBatchNorm
from cadenza.callbacks.precision import Precision
from cadenza.callbacks.profile import Profile
from cadenza.callbacks.progress import Progress
from cadenza.callbacks.results import BinaryResults, ClassificationResults, RegressionResults, ResultPackage
from cadenza.callbacks.same_predictions import AllPredictionsSame
from cadenza.callbacks.schedule import Schedule
from cadenza.callbacks.schedules import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    FlatCosineSchedule,
    FunctionSchedule,
    MultiStepSchedule,
    OneCycleSchedule,
    PlateauSchedule,
    PolynomialSchedule,
    StepSchedule,
)
from cadenza.callbacks.stage_switch import StageSwitch
from cadenza.callbacks.subset_run import SubsetRun
from cadenza.callbacks.throughput import Throughput
from cadenza.callbacks.time_limit import TimeLimit
from cadenza.callbacks.timer import Timer
from cadenza.callbacks.visualize import Visualize
from cadenza.callbacks.weight_average import WeightAverage

__all__ = [
    "EMA",
    "Accumulate",
    "ActivationStats",
    "AllPredictionsSame",
    "BatchSizeFinder",
    "BinaryResults",
    "Checkpoint",
    "ClassificationResults",
    "ConfusionMatrix",
    "ConstantSchedule",
    "CosineSchedule",
    "CostLedger",
    "CutMix",
    "EarlyStopping",
    "Evaluate",
    "ExponentialSchedule",
    "ExportCheck",
    "ExtremeBatches",
    "FlatCosineSchedule",
    "Freeze",
    "FreezeBatchNorm",
    "FunctionSchedule",
    "GradientClip",
    "GradientPlot",
    "GradientStats",
    "HangWatch",
    "HistoryFile",
    "HistoryPlot",
    "LRFinder",
    "LRMonitor",
    "Load",
    "MemoryMonitor",
    "Metrics",
    "MixUp",
    "ModelSummary",
    "MultiStepSchedule",
    "Multiscale",
    "NaNGuard",
    "Notify",
    "OneCycleSchedule",
    "Oversample",
    "Patience",
    "PlateauSchedule",
    "PolynomialSchedule",
    "PreciseBatchNorm",
    "Precision",
    "Profile",
    "Progress",
    "RegressionResults",
    "ResultPackage",
    "Schedule",
    "StageSwitch",
    "StepSchedule",
    "SubsetRun",
    "Throughput",
    "TimeLimit",
    "Timer",
    "Visualize",
    "WeightAverage",
    "accuracy",
    "clip_gradients",
    "cutmix",
    "find_batch_size",
    "find_lr",
    "mean_absolute_error",
    "mean_squared_error",
    "mixup",
    "summarize",
    "top_k_accuracy",
]
