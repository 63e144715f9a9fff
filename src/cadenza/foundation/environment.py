"""Sets environment variables for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment_with(extra: Mapping[str, str]) -> Iterator[None]:
    """Inside, processes that are started and packages that are imported get ``extra``, unless the user said otherwise.
    Afterwards all is as before.

    >>> with environment_with({"CADENZA_EXAMPLE": "1"}):
    ...     os.environ["CADENZA_EXAMPLE"]
    '1'
    >>> "CADENZA_EXAMPLE" in os.environ
    False
    """
    added = [name for name in extra if name not in os.environ]
    os.environ.update({name: extra[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
