"""The thread that writes in the background lets those that train go first."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cadenza.checkpoint import Shelf, Writer

from .states import small_state

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")


class Looking:
    """``os``, which notes the priority of the thread that writes."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, descriptor: int, data: Any) -> int:
        self.seen.add(priority())
        return os.write(descriptor, data)


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.parametrize("background", [True, False])
def test_only_the_thread_in_the_background_steps_back(background: bool, tmp_path: Path) -> None:
    before, system = priority(), Looking()
    writer = Writer(Shelf(tmp_path, system=system), background=background)
    writer.save("v1", small_state(1.0))
    writer.close()
    assert system.seen == {min(before + 10, 19) if background else before}
    assert priority() == before
