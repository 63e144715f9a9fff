"""What the original's ``training`` offers."""

from cadenza.dialects.supergradients.environment import setup_device
from cadenza.dialects.supergradients.parameters import TrainingParams
from cadenza.dialects.supergradients.trainer import Trainer

__all__ = ["Trainer", "TrainingParams", "setup_device"]
