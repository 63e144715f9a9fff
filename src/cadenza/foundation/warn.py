"""How a user is told something that no error says."""

from __future__ import annotations

import logging
import os
import sys
import warnings

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
