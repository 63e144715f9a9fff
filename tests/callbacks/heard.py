"""What a script without any logging sees."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def hearing() -> Iterator[list[str]]:
    """The warnings of what is done inside, in a list that is complete when it ends.

    Files and sockets that somebody else left open are not among them: they are found whenever memory is cleared up.
    """
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield told
        finally:
            told += [str(one.message) for one in caught if not issubclass(one.category, ResourceWarning)]
