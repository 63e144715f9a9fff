"""What checkpoints are called."""

from __future__ import annotations

import re


def name_of(epoch: int, step: int, monitor: str, value: float | None) -> str:
    """What a checkpoint is called. Of the metric's name only what every store takes is left, and not too much of it.

    >>> name_of(3, 120, "val/top 5", 0.8125)
    'epoch=3-step=120-val_top_5=0.8125'
    """
    measured = "" if value is None else f"-{re.sub('[^A-Za-z0-9._+-]+', '_', monitor)[:80]}={value:.4g}"
    return f"epoch={epoch}-step={step}{measured}"
