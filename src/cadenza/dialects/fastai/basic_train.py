"""What ``fastai.basic_train`` had: the Learner and what belongs to it."""

from cadenza.dialects.fastai.data import DataBunch, DatasetType
from cadenza.dialects.fastai.learner import AdamW, Learner
from cadenza.dialects.fastai.optimizer import OptimWrapper
from cadenza.dialects.fastai.recorder import LearnerCallback, Recorder, RecordOnCPU

__all__ = [
    "AdamW", "DataBunch", "DatasetType", "Learner", "LearnerCallback", "OptimWrapper", "RecordOnCPU", "Recorder",
]  # fmt: skip
