"""Orca's callbacks and its Estimator, as bigdl-orca 2.4.0 had them."""

from cadenza.dialects.orca.callback import Callback, MainCallBack, MainCallback, make_only_mainCallback
from cadenza.dialects.orca.estimator import Estimator
from cadenza.dialects.orca.loggers import TensorBoardCallback, WandbLoggerCallback
from cadenza.dialects.orca.ready_callbacks import MaxstepsCallback, ModelCheckpoint, TqdmCallback, is_tqdm_exists
from cadenza.dialects.orca.runner import Runner
from cadenza.dialects.orca.table import DIALECT

__all__ = [
    "DIALECT", "Callback", "Estimator", "MainCallBack", "MainCallback", "MaxstepsCallback", "ModelCheckpoint", "Runner",
    "TensorBoardCallback", "TqdmCallback", "WandbLoggerCallback", "is_tqdm_exists", "make_only_mainCallback",
]  # fmt: skip
