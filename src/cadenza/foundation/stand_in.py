"""Replaces a function of the whole process for as long as somebody listens to its calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[..., object]


class StandIn:
    """Stands in for ``owner.name`` while there are listeners, in however many threads, and goes when the last one does.

    ``make`` gets the function that was there and ``tell``, which calls all listeners and says whether one of them
    returned something true; it returns the function that stands in. If another one has been put in its place meanwhile,
    that one stays.

    >>> class Owner:
    ...     greet = staticmethod(lambda name: f"hello {name}")
    >>> standing = StandIn(Owner, "greet", lambda greet, tell: lambda name: tell(name) or greet(name))
    >>> heard = []
    >>> with standing.heard_by(heard.append):
    ...     Owner.greet("you")
    'hello you'
    >>> Owner.greet("us"), heard
    ('hello us', ['you'])
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Callable[..., Any], Listener], Any]) -> None:
        self.owner, self.name, self.make = owner, name, make
        self._lock = threading.Lock()
        self._listeners: tuple[Listener, ...] = ()
        self._replaced: Any = None
        self._mine: Any = None

    @contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        with self._lock:
            if not self._listeners:
                self._replaced = getattr(self.owner, self.name)
                self._mine = self.make(self._replaced, self._tell)
                setattr(self.owner, self.name, self._mine)
            self._listeners += (listener,)
        try:
            yield
        finally:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not listener)
                if not self._listeners and getattr(self.owner, self.name) is self._mine:
                    setattr(self.owner, self.name, self._replaced)

    def _tell(self, *args: Any) -> bool:
        answers = [listener(*args) for listener in self._listeners]  # all of them hear it
        return any(answers)
