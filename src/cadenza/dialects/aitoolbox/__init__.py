"""AIToolbox's callbacks, loop and models, under their names. ``docs/dialects.md`` has the tables."""
from cadenza.dialects.aitoolbox.table import DIALECT
from cadenza.dialects.aitoolbox.abstract import AbstractCallback
from cadenza.dialects.aitoolbox.train_loop import TrainLoop
