"""A store that is down, and when it is worth asking it again."""

from __future__ import annotations

import time

FIRST, LONGEST = 15.0, 300.0
"""Seconds until a store that failed is asked again, at first and at most."""


class Outage:
    """Remembers that a store failed, so that later saves do not wait for it. The pauses between questions double.

    >>> outage = Outage()
    >>> outage.is_on, outage.is_due
    (False, True)
    >>> outage.failed("ConnectionError: refused")
    >>> outage.is_on, outage.is_due, outage.reason
    (True, False, 'ConnectionError: refused')
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._pause = self._until = 0.0

    @property
    def is_on(self) -> bool:
        return self.reason is not None

    @property
    def is_due(self) -> bool:
        """Whether the store may be asked again."""
        return time.monotonic() >= self._until

    def failed(self, reason: str) -> None:
        self.reason = reason
        self._pause = min(2 * self._pause or FIRST, LONGEST)
        self._until = time.monotonic() + self._pause

    def ended(self) -> None:
        self.reason = None
        self._pause = self._until = 0.0
