"""Counting how often the host waits for a CUDA device."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

_WAITED = "called a synchronizing CUDA operation"
_PROTOTYPE = "Synchronization debug mode is a prototype"


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
        filters = [_filter("always", _WAITED), _filter("ignore", _PROTOTYPE)]
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
        shown = warnings.showwarning
        self._replace(warnings, "showwarning", lambda *args, **more: self._notice(shown, *args, **more))
        torch.cuda.set_sync_debug_mode("warn")
        self._undo.callback(torch.cuda.set_sync_debug_mode, "default")
        for owner in (torch.cuda, torch.accelerator, torch.cuda.Event):  # torch tells of those of a stream itself
            self._replace(owner, "synchronize", self._counted(owner.synchronize))

    def end(self) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth == 0:
            self._undo.close()

    def _replace(self, owner: Any, name: str, stand_in: Callable[..., Any]) -> None:
        self._undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, stand_in)

    def _counted(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            self.count += threading.get_ident() == self._thread
            return wait(*args, **more)

        return counted

    def _notice(self, shown: Callable[..., Any], message: Any, *args: Any, **more: Any) -> None:
        if not str(message).startswith(_WAITED):
            shown(message, *args, **more)
        elif threading.get_ident() == self._thread:
            self.count += 1


def _filter(action: Any, message: str) -> Any:
    """Puts a filter before all others and returns it."""
    warnings.filterwarnings(action, message=re.escape(message))
    return warnings.filters[0]
