"""Limits the time of a call to a store, and says when a store that failed is asked again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")
Tick = Callable[[], None]


class Silent(TimeoutError):
    """A store accepted a request and did not answer it in time."""


class Abandoned(Exception):
    """Nobody waits for this call any more. It must not change anything after that."""


def within(seconds: float, what: str, function: Callable[[Tick], T]) -> T:
    """Returns ``function(tick)``. Raises ``Silent`` if it neither returns nor calls ``tick`` for ``seconds``.

    A thread cannot be ended from outside. One that is given up stays until its call returns; its next ``tick`` ends it.

    >>> within(5.0, "the store", lambda tick: 42)
    42
    """
    return _Watched(function).wait(seconds, what)


class _Watched(Generic[T]):
    def __init__(self, function: Callable[[Tick], T]) -> None:
        self._function = function
        self._done = threading.Event()
        self._ticks = 0
        self._abandoned = False
        self._result: T | None = None
        self._error: BaseException | None = None

    def wait(self, seconds: float, what: str) -> T:
        threading.Thread(target=self._run, name="cadenza store", daemon=True).start()
        seen = -1
        try:
            while seen != self._ticks:  # it has moved since, so it gets as long again
                seen = self._ticks
                if self._done.wait(seconds):
                    break
            else:
                raise Silent(f"{what} did not answer within {seconds:g} s")
        except BaseException:  # also if the user interrupts the wait
            self._abandoned = True
            raise
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def _run(self) -> None:
        try:
            self._result = self._function(self._tick)
        except BaseException as error:  # raised in the thread that waits
            self._error = error
        self._done.set()

    def _tick(self) -> None:
        if self._abandoned:
            raise Abandoned
        self._ticks += 1


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
