"""Many processes: who takes part, how they agree, how the model is spread over them, and how they are started."""

from cadenza.distributed.launchers import launch
from cadenza.distributed.world import World

__all__ = ["World", "launch"]
