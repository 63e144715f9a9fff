"""All callbacks, as the original's ``training.utils.callbacks`` offers them."""

from cadenza.dialects.supergradients.callback import *
from cadenza.dialects.supergradients.early_stop import *
from cadenza.dialects.supergradients.extreme_batches import *
from cadenza.dialects.supergradients.pictures import *
from cadenza.dialects.supergradients.pre_prediction import *
from cadenza.dialects.supergradients.registry import REGISTRIES
from cadenza.dialects.supergradients.schedules import *
from cadenza.dialects.supergradients.stages import *
from cadenza.dialects.supergradients.warmups import *

__all__ = [
    "CALLBACKS", "LR_SCHEDULERS_CLS_DICT", "LR_WARMUP_CLS_DICT", "BatchStepLinearWarmupLRCallback",
    "BinarySegmentationVisualizationCallback", "Callback", "CallbackHandler", "CosineLRCallback", "CosineLRScheduler",
    "DetectionMultiscalePrePredictionCallback", "DetectionVisualizationCallback", "EarlyStop",
    "EpochStepWarmupLRCallback", "ExponentialLRCallback", "ExponentialLRScheduler",
    "ExtremeBatchCaseVisualizationCallback", "ExtremeBatchDetectionVisualizationCallback",
    "ExtremeBatchSegVisualizationCallback", "FunctionLRCallback", "FunctionLRScheduler", "LRCallbackBase",
    "LRSchedulerCallback", "LinearBatchLRWarmup", "LinearEpochLRWarmup", "ModelConversionCheckCallback",
    "MultiscalePrePredictionCallback", "Phase", "PhaseCallback", "PhaseContext", "PolyLRCallback", "PolyLRScheduler",
    "StepLRCallback", "StepLRScheduler", "TimerCallback", "TrainingStageSwitchCallbackBase",
    "YoloXTrainingStageSwitchCallback",
]  # fmt: skip
CALLBACKS = REGISTRIES["callback"]
LR_SCHEDULERS_CLS_DICT = REGISTRIES["lr_scheduler"]
LR_WARMUP_CLS_DICT = REGISTRIES["lr_warmup"]
