"""AIToolbox's callbacks, loops, models and result packages, under their names. ``docs/dialects.md`` has the tables."""

from cadenza.dialects.aitoolbox.abstract import *
from cadenza.dialects.aitoolbox.basic import *
from cadenza.dialects.aitoolbox.components import TrainingHistory as TrainingHistory
from cadenza.dialects.aitoolbox.gradient import *
from cadenza.dialects.aitoolbox.messages import *
from cadenza.dialects.aitoolbox.model_load import *
from cadenza.dialects.aitoolbox.model_save import *
from cadenza.dialects.aitoolbox.models import *
from cadenza.dialects.aitoolbox.multi import *
from cadenza.dialects.aitoolbox.performance_eval import *
from cadenza.dialects.aitoolbox.results import *
from cadenza.dialects.aitoolbox.table import DIALECT as DIALECT
from cadenza.dialects.aitoolbox.tensorboard import *
from cadenza.dialects.aitoolbox.train_loop import *
from cadenza.dialects.aitoolbox.train_schedule import *
