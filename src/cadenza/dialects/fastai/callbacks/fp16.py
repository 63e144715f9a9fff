"""fastai's mixed precision, by the native one."""

from __future__ import annotations

import sys
from typing import Any

from cadenza.callbacks import Precision

__all__ = ["MixedPrecision"]


class MixedPrecision(Precision):
    """Half precision with a scaled loss. Weights stay in full precision, so there is no copy of them as in the
    original, and gradients are unscaled before any other callback sees them."""

    name = "MixedPrecision"

    def __init__(
        self, learn: Any, loss_scale: float | None = None, max_noskip: int = 1000, dynamic: bool = True,
        clip: float | None = None, flat_master: bool = False, max_scale: float = 2.0**24, loss_fp32: bool = True,
    ) -> None:  # fmt: skip
        if flat_master:
            raise ValueError("fastai: flat_master is not carried: there is no copy of the weights to flatten")
        if clip is not None:
            raise ValueError("fastai: clip is not carried here; use learn.clip_grad(), which sees unscaled gradients")
        grows = max_noskip if dynamic else sys.maxsize
        super().__init__("fp16", init_scale=loss_scale or min(2.0**16, max_scale), growth_interval=grows)
