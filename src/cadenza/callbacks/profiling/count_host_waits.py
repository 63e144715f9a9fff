"""Counting how often the host waits for a CUDA device."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from cadenza.execution.recorded.host_sync import PROTOTYPE, WAITED, noting_synchronize
from cadenza.foundation.warn import SHOWN


class HostWaits:
    """Counts the waits of the thread that made it, from ``begin`` to ``end``, while it is ``listening``.

    Torch itself tells of operations that read from the device (its synchronization debug mode, set to "warn"); calls of
    ``synchronize`` that it does not tell of are counted by standing in for them. Everything is as before when ``end``
    is called, at the latest when the listening ends. A program that uses the debug mode itself keeps it, and nothing is
    counted.
    """

    def __init__(self) -> None:
        self.count = 0
        self.counts = False
        self._depth = 0
        self._undo = contextlib.ExitStack()
        self._thread = threading.get_ident()

    @contextlib.contextmanager
    def listening(self, device: torch.device) -> Iterator[None]:
        """Makes counting possible, if there is anything to count on ``device``."""
        if device.type != "cuda" or torch.cuda.get_sync_debug_mode() != 0:
            yield
            return
        self._thread = threading.get_ident()
        filters = [_filter("always", WAITED), _filter("ignore", PROTOTYPE)]
        self.counts = True
        try:
            yield
        finally:
            self._depth = 1
            self.end()
            self.counts = False
            for one in filters:
                with contextlib.suppress(ValueError):  # somebody reset them all in the meantime
                    warnings.filters.remove(one)  # type: ignore[attr-defined]

    def begin(self) -> None:
        self._depth += 1
        if self._depth > 1 or not self.counts:
            return
        self._undo.enter_context(SHOWN.heard_by(self._notice))
        torch.cuda.set_sync_debug_mode("warn")
        self._undo.callback(torch.cuda.set_sync_debug_mode, "default")
        self._undo.enter_context(noting_synchronize(lambda _: self._count()))

    def end(self) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth == 0:
            self._undo.close()

    def _count(self) -> None:
        self.count += threading.get_ident() == self._thread

    def _notice(self, message: Any, _: type[Warning]) -> bool:
        """Keeps torch's warnings of waits from being shown, and counts them."""
        waited = str(message).startswith(WAITED)
        if waited:
            self._count()
        return waited


def _filter(action: Any, message: str) -> Any:
    """Puts a filter before all others and returns it."""
    warnings.filterwarnings(action, message=re.escape(message))
    return warnings.filters[0]
