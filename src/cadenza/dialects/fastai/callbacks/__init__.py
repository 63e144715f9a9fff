"""What ``fastai.callbacks`` had."""

from cadenza.dialects.fastai.callbacks.csv_logger import *
from cadenza.dialects.fastai.callbacks.fp16 import *
from cadenza.dialects.fastai.callbacks.hooks import *
from cadenza.dialects.fastai.callbacks.loss_metrics import *
from cadenza.dialects.fastai.callbacks.lr_finder import *
from cadenza.dialects.fastai.callbacks.misc import *
from cadenza.dialects.fastai.callbacks.mixup import *
from cadenza.dialects.fastai.callbacks.phases import *
from cadenza.dialects.fastai.callbacks.rnn import *
from cadenza.dialects.fastai.callbacks.sampling import *
from cadenza.dialects.fastai.callbacks.tracker import *
from cadenza.dialects.fastai.callbacks.trackers import *
