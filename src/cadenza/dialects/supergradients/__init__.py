"""SuperGradients' callbacks, trainer and registries, under their names. ``docs/dialects.md`` has the tables.

All callbacks (``callbacks.py``) and all ``register_…`` decorators (``registry.py``) are here, too.
"""

from cadenza.dialects.supergradients import callbacks, registry
from cadenza.dialects.supergradients.callbacks import *
from cadenza.dialects.supergradients.environment import MultiGPUMode, init_trainer, multi_process_safe, setup_device
from cadenza.dialects.supergradients.loggers import BaseSGLogger
from cadenza.dialects.supergradients.metrics import Accuracy, Top5
from cadenza.dialects.supergradients.parameters import TrainingParams
from cadenza.dialects.supergradients.registry import *
from cadenza.dialects.supergradients.table import DIALECT
from cadenza.dialects.supergradients.trainer import Trainer

__all__ = [
    "DIALECT", "Accuracy", "BaseSGLogger", "MultiGPUMode", "Top5", "Trainer", "TrainingParams", "init_trainer",
    "multi_process_safe", "setup_device",
]  # fmt: skip
__all__ += callbacks.__all__
__all__ += registry.__all__
