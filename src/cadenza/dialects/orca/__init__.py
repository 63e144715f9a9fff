"""Orca's callbacks and its Estimator, as bigdl-orca 2.4.0 had them."""

from cadenza.dialects.orca.callback import Callback, MainCallBack, MainCallback, make_only_mainCallback
from cadenza.dialects.orca.runner import Runner
from cadenza.dialects.orca.table import DIALECT

__all__ = ["DIALECT", "Callback", "MainCallBack", "MainCallback", "Runner", "make_only_mainCallback"]
