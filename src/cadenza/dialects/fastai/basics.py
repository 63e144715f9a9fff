"""What a star import of ``fastai.basics``, ``fastai.vision`` and their like brings; more is there by name."""

from cadenza.dialects.fastai.imports import *  # isort: skip
from cadenza.dialects.fastai import callbacks
from cadenza.dialects.fastai.basic_train import *
from cadenza.dialects.fastai.callback import *
from cadenza.dialects.fastai.core import *
from cadenza.dialects.fastai.layers import *
from cadenza.dialects.fastai.metrics import *
from cadenza.dialects.fastai.torch_core import *
from cadenza.dialects.fastai.train import *

__all__ = [_name for _name in globals() if not _name.startswith("_")]

from cadenza.dialects.fastai.imports import ELSEWHERE as _ELSEWHERE

globals().update(vars(callbacks), **_ELSEWHERE)
