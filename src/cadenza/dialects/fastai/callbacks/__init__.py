"""What ``fastai.callbacks`` had."""

from cadenza.dialects.fastai.callbacks.csv_logger import CSVLogger
from cadenza.dialects.fastai.callbacks.fp16 import MixedPrecision
from cadenza.dialects.fastai.callbacks.hooks import (
    ActivationStats,
    Hook,
    HookCallback,
    Hooks,
    hook_output,
    hook_outputs,
    model_summary,
)
from cadenza.dialects.fastai.callbacks.loss_metrics import LossMetrics
from cadenza.dialects.fastai.callbacks.lr_finder import LRFinder
from cadenza.dialects.fastai.callbacks.memory import CpuPeakMemMetric, PeakMemMetric
from cadenza.dialects.fastai.callbacks.misc import StopAfterNBatches
from cadenza.dialects.fastai.callbacks.mixup import MixUpCallback, MixUpLoss
from cadenza.dialects.fastai.callbacks.phases import (
    FlatCosAnnealScheduler,
    GeneralScheduler,
    OneCycleScheduler,
    TrainingPhase,
)
from cadenza.dialects.fastai.callbacks.rnn import RNNTrainer
from cadenza.dialects.fastai.callbacks.sampling import OverSamplingCallback, UnderSamplingCallback
from cadenza.dialects.fastai.callbacks.tracker import (
    EarlyStoppingCallback,
    ReduceLROnPlateauCallback,
    SaveModelCallback,
    TerminateOnNaNCallback,
    TrackEpochCallback,
    TrackerCallback,
)
from cadenza.dialects.fastai.callbacks.trackers import LearnerTensorboardWriter, MLFlowTracker

__all__ = [
    "ActivationStats",
    "CSVLogger",
    "CpuPeakMemMetric",
    "EarlyStoppingCallback",
    "FlatCosAnnealScheduler",
    "GeneralScheduler",
    "Hook",
    "HookCallback",
    "Hooks",
    "LRFinder",
    "LearnerTensorboardWriter",
    "LossMetrics",
    "MLFlowTracker",
    "MixUpCallback",
    "MixUpLoss",
    "MixedPrecision",
    "OneCycleScheduler",
    "OverSamplingCallback",
    "PeakMemMetric",
    "RNNTrainer",
    "ReduceLROnPlateauCallback",
    "SaveModelCallback",
    "StopAfterNBatches",
    "TerminateOnNaNCallback",
    "TrackEpochCallback",
    "TrackerCallback",
    "TrainingPhase",
    "UnderSamplingCallback",
    "hook_output",
    "hook_outputs",
    "model_summary",
]
