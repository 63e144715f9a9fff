"""fastai v1's callbacks and a small Learner, and the events of the blog that simplified them."""

from cadenza.dialects.fastai.basic_train import (
    AdamW,
    DataBunch,
    DatasetType,
    Learner,
    LearnerCallback,
    OptimWrapper,
    Recorder,
    RecordOnCPU,
)
from cadenza.dialects.fastai.callback import AverageMetric, Callback, add_metrics
from cadenza.dialects.fastai.metrics import accuracy, error_rate
from cadenza.dialects.fastai.table import DIALECT
from cadenza.dialects.fastai.train import AccumulateScheduler, BnFreeze, GradientClipping, ShowGraph

__all__ = [
    "DIALECT",
    "AccumulateScheduler",
    "AdamW",
    "AverageMetric",
    "BnFreeze",
    "Callback",
    "DataBunch",
    "DatasetType",
    "GradientClipping",
    "Learner",
    "LearnerCallback",
    "OptimWrapper",
    "RecordOnCPU",
    "Recorder",
    "ShowGraph",
    "accuracy",
    "add_metrics",
    "error_rate",
]
