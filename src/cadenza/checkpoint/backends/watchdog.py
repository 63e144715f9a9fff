"""Time limits for calls that cannot be interrupted, such as a request to a server that never answers."""

from __future__ import annotations

import threading
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
