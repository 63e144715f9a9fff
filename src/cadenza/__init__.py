"""Cadenza: PyTorch training as a score of named points into which you insert callbacks."""

import logging as _logging

from cadenza.callback import Callback, MainCallback, Order, Watch, not_a_point
from cadenza.clock import Clock, Duration
from cadenza.decisions import Best
from cadenza.distributed import launch
from cadenza.execution.options import Execution
from cadenza.history import History
from cadenza.points import POINTS
from cadenza.preemption import Preempted
from cadenza.registration import CallbackError
from cadenza.run import Run
from cadenza.trainer import Trainer
from cadenza.when import When

__version__ = "0.1.0"
__all__ = [
    "POINTS",
    "Best",
    "Callback",
    "CallbackError",
    "Clock",
    "Duration",
    "Execution",
    "History",
    "MainCallback",
    "Order",
    "Preempted",
    "Run",
    "Trainer",
    "Watch",
    "When",
    "launch",
    "not_a_point",
]

_logging.getLogger("cadenza").addHandler(_logging.NullHandler())
