"""fastai v1's callbacks and a small Learner, and the events of the blog that simplified them."""

from cadenza.dialects.fastai.basic_train import *
from cadenza.dialects.fastai.callback import *
from cadenza.dialects.fastai.metrics import *
from cadenza.dialects.fastai.table import DIALECT as DIALECT
from cadenza.dialects.fastai.train import *
