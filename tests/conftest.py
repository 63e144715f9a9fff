"""One torch thread: on tiny models more of them only wait for each other. Property tests try the same cases every time,
and are not failed by a slow machine."""

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

collect_ignore = ["checkpoint/starter.py"]
"""A program that a test starts; it imports what lies beside it."""
