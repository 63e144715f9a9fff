"""Ready callbacks, one idea in one file. Each idea that makes sense in a loop of your own is a plain function too."""

from cadenza.callbacks.checkpoint import Checkpoint
from cadenza.callbacks.guards.early_stopping import EarlyStopping, Patience
from cadenza.callbacks.guards.hang_watch import HangWatch
from cadenza.callbacks.guards.nan_guard import NaNGuard
from cadenza.callbacks.guards.same_predictions import AllPredictionsSame
from cadenza.callbacks.guards.time_limit import TimeLimit
from cadenza.callbacks.measuring.activation_stats import ActivationStats
from cadenza.callbacks.measuring.confusion import ConfusionMatrix
from cadenza.callbacks.measuring.evaluate import Evaluate
from cadenza.callbacks.measuring.extreme_batches import ExtremeBatches
from cadenza.callbacks.measuring.gradient_stats import GradientStats
from cadenza.callbacks.measuring.lr_monitor import LRMonitor
from cadenza.callbacks.measuring.metrics import Metrics
from cadenza.callbacks.measuring.model_summary import ModelSummary, summarize
from cadenza.callbacks.measuring.per_sample import accuracy, mean_absolute_error, mean_squared_error, top_k_accuracy
from cadenza.callbacks.measuring.result_packages import (
    BinaryResults,
    ClassificationResults,
    RegressionResults,
    ResultPackage,
)
from cadenza.callbacks.profiling.cost_ledger import CostLedger
from cadenza.callbacks.profiling.memory_monitor import MemoryMonitor
from cadenza.callbacks.profiling.profile import Profile
from cadenza.callbacks.profiling.throughput import Throughput
from cadenza.callbacks.profiling.timer import Timer
from cadenza.callbacks.rates.batch_size_finder import BatchSizeFinder, find_batch_size
from cadenza.callbacks.rates.lr_finder import LRFinder, find_lr
from cadenza.callbacks.rates.schedule import Schedule
from cadenza.callbacks.rates.schedules import (
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
from cadenza.callbacks.showing.export_check import ExportCheck
from cadenza.callbacks.showing.gradient_plot import GradientPlot
from cadenza.callbacks.showing.history_file import HistoryFile
from cadenza.callbacks.showing.history_plot import HistoryPlot
from cadenza.callbacks.showing.notify import Notify
from cadenza.callbacks.showing.progress import Progress
from cadenza.callbacks.showing.visualize import Visualize
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.callbacks.training.clip import GradientClip, clip_gradients
from cadenza.callbacks.training.cutmix import CutMix, cutmix
from cadenza.callbacks.training.ema import EMA
from cadenza.callbacks.training.freeze import Freeze
from cadenza.callbacks.training.freeze_batchnorm import FreezeBatchNorm
from cadenza.callbacks.training.load import Load
from cadenza.callbacks.training.mixup import MixUp, mixup
from cadenza.callbacks.training.multiscale import Multiscale
from cadenza.callbacks.training.oversample import Oversample
from cadenza.callbacks.training.precise_batchnorm import PreciseBatchNorm
from cadenza.callbacks.training.precision import Precision
from cadenza.callbacks.training.stage_switch import StageSwitch
from cadenza.callbacks.training.subset_run import SubsetRun
from cadenza.callbacks.training.weight_average import WeightAverage

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
