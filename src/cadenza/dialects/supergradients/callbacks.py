"""All callbacks, as the original's ``training.utils.callbacks`` offers them."""

from cadenza.dialects.supergradients.callback import Callback, Phase, PhaseCallback, PhaseContext
from cadenza.dialects.supergradients.early_stop import EarlyStop
from cadenza.dialects.supergradients.extreme_batches import (
    ExtremeBatchCaseVisualizationCallback,
    ExtremeBatchDetectionVisualizationCallback,
    ExtremeBatchSegVisualizationCallback,
)
from cadenza.dialects.supergradients.pictures import (
    BinarySegmentationVisualizationCallback,
    DetectionVisualizationCallback,
)
from cadenza.dialects.supergradients.pre_prediction import (
    DetectionMultiscalePrePredictionCallback,
    MultiscalePrePredictionCallback,
)
from cadenza.dialects.supergradients.schedules import (
    CosineLRCallback,
    CosineLRScheduler,
    ExponentialLRCallback,
    ExponentialLRScheduler,
    FunctionLRCallback,
    FunctionLRScheduler,
    LRCallbackBase,
    LRSchedulerCallback,
    PolyLRCallback,
    PolyLRScheduler,
    StepLRCallback,
    StepLRScheduler,
)
from cadenza.dialects.supergradients.stages import (
    ModelConversionCheckCallback,
    TimerCallback,
    TrainingStageSwitchCallbackBase,
    YoloXTrainingStageSwitchCallback,
)
from cadenza.dialects.supergradients.warmups import (
    BatchStepLinearWarmupLRCallback,
    EpochStepWarmupLRCallback,
    LinearBatchLRWarmup,
    LinearEpochLRWarmup,
)

__all__ = [
    "BatchStepLinearWarmupLRCallback",
    "BinarySegmentationVisualizationCallback",
    "Callback",
    "CosineLRCallback",
    "CosineLRScheduler",
    "DetectionMultiscalePrePredictionCallback",
    "DetectionVisualizationCallback",
    "EarlyStop",
    "EpochStepWarmupLRCallback",
    "ExponentialLRCallback",
    "ExponentialLRScheduler",
    "ExtremeBatchCaseVisualizationCallback",
    "ExtremeBatchDetectionVisualizationCallback",
    "ExtremeBatchSegVisualizationCallback",
    "FunctionLRCallback",
    "FunctionLRScheduler",
    "LRCallbackBase",
    "LRSchedulerCallback",
    "LinearBatchLRWarmup",
    "LinearEpochLRWarmup",
    "ModelConversionCheckCallback",
    "MultiscalePrePredictionCallback",
    "Phase",
    "PhaseCallback",
    "PhaseContext",
    "PolyLRCallback",
    "PolyLRScheduler",
    "StepLRCallback",
    "StepLRScheduler",
    "TimerCallback",
    "TrainingStageSwitchCallbackBase",
    "YoloXTrainingStageSwitchCallback",
]
