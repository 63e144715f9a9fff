"""Cadenza: PyTorch training as a score of named points into which you insert callbacks.

What is public here is imported when it is first used: ``cadenza --help`` and the shell's completion need no torch.
"""

import importlib as _importlib
import logging as _logging
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from cadenza.callback import Callback, Order, Watch, not_a_point
    from cadenza.clock import Clock, Duration
    from cadenza.distributed import launch
    from cadenza.execution.executor import Execution
    from cadenza.history import Best, History
    from cadenza.main_callback import MainCallback
    from cadenza.points import POINTS
    from cadenza.registration.checks import CallbackError
    from cadenza.resume.signals import Preempted
    from cadenza.run import Run
    from cadenza.trainer import Trainer
    from cadenza.when import When

__version__ = "0.1.0"
__all__ = [
    "POINTS",
    "Best",
    "Callback",
    "CallbackError",
    "Clock",
    "Duration",
    "Execution",
    "History",
    "MainCallback",
    "Order",
    "Preempted",
    "Run",
    "Trainer",
    "Watch",
    "When",
    "launch",
    "not_a_point",
]

_PLACES = {
    "POINTS": "cadenza.points",
    "Best": "cadenza.history",
    "Callback": "cadenza.callback",
    "CallbackError": "cadenza.registration.checks",
    "Clock": "cadenza.clock",
    "Duration": "cadenza.clock",
    "Execution": "cadenza.execution.executor",
    "History": "cadenza.history",
    "MainCallback": "cadenza.main_callback",
    "Order": "cadenza.callback",
    "Preempted": "cadenza.resume.signals",
    "Run": "cadenza.run",
    "Trainer": "cadenza.trainer",
    "Watch": "cadenza.callback",
    "When": "cadenza.when",
    "launch": "cadenza.distributed",
    "not_a_point": "cadenza.callback",
}
_PACKAGES = frozenset(
    {"callbacks", "checkpoint", "data", "dialects", "distributed", "experiment", "recipes", "testing"}
)
"""``import cadenza`` is enough to write ``cadenza.callbacks.EMA``."""


if not _TYPE_CHECKING:  # so that type checkers still refuse what is not there

    def __getattr__(name: str) -> object:
        """Imports what is asked for; afterwards it is there as if it had been imported at the top."""
        if name in _PACKAGES:
            return _importlib.import_module(f"{__name__}.{name}")
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found: object = getattr(_importlib.import_module(_PLACES[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES, *(name for name in globals() if name.startswith("__"))})


_logging.getLogger("cadenza").addHandler(_logging.NullHandler())
