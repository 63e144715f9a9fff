"""Warnings: giving one at the user's line, and hearing those of the whole process."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from cadenza.foundation.stand_in import Listener, StandIn

log = logging.getLogger("cadenza")
_LIBRARY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def notice(said: str) -> None:
    """Shows one line on standard error. It is not a warning, which a test suite may turn into an error."""
    try:
        if sys.stderr is not None:
            print(f"cadenza: {said}", file=sys.stderr)
            return
    except (OSError, ValueError):  # standard error is closed, which must not end a training
        pass
    log.info("%s", said)


def warn(said: str) -> None:
    """Warns, so that who has set up no logging sees it, at the line outside of this library from which it was called;
    where warnings cannot be shown any more, it is logged."""
    level, caller = 1, sys._getframe(0)
    while caller.f_back is not None and caller.f_code.co_filename.startswith(_LIBRARY):
        level, caller = level + 1, caller.f_back
    try:
        warnings.warn(said, stacklevel=level)
    except (OSError, ValueError):  # standard error is closed, which must not end a training
        log.warning("%s", said)


def _showing(show: Callable[..., Any], tell: Listener) -> Callable[..., Any]:
    def show_unless_taken(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not tell(message, category):
            show(message, category, *where, **more)

    return show_unless_taken


SHOWN = StandIn(warnings, "showwarning", _showing)
"""Tells its listeners each warning that is shown, and its category. One that returns True keeps it from being shown."""
