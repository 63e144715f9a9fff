"""One torch thread: on tiny models more of them only wait for each other. Property tests try the same cases every time,
and are not failed by a slow machine."""

import gc
import logging
import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

os.environ["RAY_TQDM_PATCH_PRINT"] = "0"  # or Ray replaces print in this process, and later tests see another function

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["checkpoint/starter.py"]
"""A program that a test starts; it imports what lies beside it."""


LONGEST = (
    "test_ray",
    "test_spark",
    "test_certificate",
    "test_reduction",
    "test_resume",
    "test_world_size",
    "test_signals",
)
"""Files that take longest. They start first, so that at the end no worker is left alone with one of them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.stem.startswith(LONGEST))


def pytest_collection_finish() -> None:
    """What was imported for all tests is not gone through each time that a test collects garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def heard() -> None:
    """Trackers and engines of other tests configure logging, some by switching off every logger that is there."""
    log = logging.getLogger("cadenza")
    log.disabled, log.propagate = False, True
    log.setLevel(logging.NOTSET)
    logging.disable(logging.NOTSET)
