"""One torch thread: on tiny models more of them only wait for each other. Property tests try the same cases every time,
and are not failed by a slow machine."""

import gc

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

collect_ignore = ["checkpoint/starter.py"]
"""A program that a test starts; it imports what lies beside it."""


def pytest_collection_finish() -> None:
    """What was imported for all tests is not gone through each time that a test collects garbage."""
    gc.collect()
    gc.freeze()
