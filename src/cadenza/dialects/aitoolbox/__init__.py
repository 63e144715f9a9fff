"""AIToolbox's callbacks, loops, models and result packages, under their names. ``docs/dialects.md`` has the tables."""

from cadenza.dialects.aitoolbox.abstract import AbstractCallback, AbstractExperimentCallback
from cadenza.dialects.aitoolbox.basic import (
    AllPredictionsSame,
    DataSubsetTestRun,
    EarlyStopping,
    FunctionOnTrainLoop,
    ListRegisteredCallbacks,
    TerminateOnNaN,
    ThresholdEarlyStopping,
)
from cadenza.dialects.aitoolbox.experiment_loops import (
    TrainLoopCheckpoint,
    TrainLoopCheckpointEndSave,
    TrainLoopEndSave,
)
from cadenza.dialects.aitoolbox.gradient import GradDistributionPlot, GradientStatsPrint, GradNormClip, GradValueClip
from cadenza.dialects.aitoolbox.history import TrainingHistory
from cadenza.dialects.aitoolbox.messages import MessageHandling, MessageService
from cadenza.dialects.aitoolbox.model_load import ModelLoadContinueTraining
from cadenza.dialects.aitoolbox.model_save import ModelCheckpoint, ModelIterationCheckpoint, ModelTrainEndSave
from cadenza.dialects.aitoolbox.models import AbstractModelFeedDefinition, ModelWrap, TTBasicModel, TTModel
from cadenza.dialects.aitoolbox.multi import MultiLoss, MultiOptimizer
from cadenza.dialects.aitoolbox.performance_eval import (
    MetricHistoryRename,
    ModelPerformanceEvaluation,
    ModelPerformancePrintReport,
    ModelTrainHistoryFileWriter,
    ModelTrainHistoryPlot,
    TrainHistoryFormatter,
)
from cadenza.dialects.aitoolbox.results import (
    AbstractResultPackage,
    BinaryClassificationResultPackage,
    ClassificationResultPackage,
    GeneralResultPackage,
    MultipleResultPackageWrapper,
    PreCalculatedResultPackage,
    RegressionResultPackage,
)
from cadenza.dialects.aitoolbox.table import DIALECT
from cadenza.dialects.aitoolbox.tensorboard import (
    TensorboardFullTracking,
    TensorboardTrainBatchLoss,
    TensorboardTrainHistoryMetric,
)
from cadenza.dialects.aitoolbox.train_loop import TrainLoop
from cadenza.dialects.aitoolbox.train_schedule import (
    ConstantWithWarmup,
    CosineWithWarmup,
    GeneralLRSchedulerCallback,
    HardRestartsCosineWithWarmup,
    LambdaLRScheduler,
    LinearWithWarmup,
    MultiStepLRScheduler,
    ReduceLROnPlateauMetricScheduler,
    ReduceLROnPlateauScheduler,
    StepLRScheduler,
)

__all__ = [
    "DIALECT",
    "AbstractCallback",
    "AbstractExperimentCallback",
    "AbstractModelFeedDefinition",
    "AbstractResultPackage",
    "AllPredictionsSame",
    "BinaryClassificationResultPackage",
    "ClassificationResultPackage",
    "ConstantWithWarmup",
    "CosineWithWarmup",
    "DataSubsetTestRun",
    "EarlyStopping",
    "FunctionOnTrainLoop",
    "GeneralLRSchedulerCallback",
    "GeneralResultPackage",
    "GradDistributionPlot",
    "GradNormClip",
    "GradValueClip",
    "GradientStatsPrint",
    "HardRestartsCosineWithWarmup",
    "LambdaLRScheduler",
    "LinearWithWarmup",
    "ListRegisteredCallbacks",
    "MessageHandling",
    "MessageService",
    "MetricHistoryRename",
    "ModelCheckpoint",
    "ModelIterationCheckpoint",
    "ModelLoadContinueTraining",
    "ModelPerformanceEvaluation",
    "ModelPerformancePrintReport",
    "ModelTrainEndSave",
    "ModelTrainHistoryFileWriter",
    "ModelTrainHistoryPlot",
    "ModelWrap",
    "MultiLoss",
    "MultiOptimizer",
    "MultiStepLRScheduler",
    "MultipleResultPackageWrapper",
    "PreCalculatedResultPackage",
    "ReduceLROnPlateauMetricScheduler",
    "ReduceLROnPlateauScheduler",
    "RegressionResultPackage",
    "StepLRScheduler",
    "TTBasicModel",
    "TTModel",
    "TensorboardFullTracking",
    "TensorboardTrainBatchLoss",
    "TensorboardTrainHistoryMetric",
    "TerminateOnNaN",
    "ThresholdEarlyStopping",
    "TrainHistoryFormatter",
    "TrainLoop",
    "TrainLoopCheckpoint",
    "TrainLoopCheckpointEndSave",
    "TrainLoopEndSave",
    "TrainingHistory",
]
