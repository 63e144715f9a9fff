"""A run that is told to end from outside: by a scheduler, a cloud, or Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

_follows_launcher = False


def follow_launcher() -> None:
    """Called in a process that ``launch`` started. The launcher ends it at a second Ctrl-C, so two SIGINT here are one
    Ctrl-C that came on two ways, such as ``pkill -INT`` and the launcher."""
    global _follows_launcher
    _follows_launcher = True


class Preempted(SystemExit):
    """The run was told to end by a signal, and saved itself. Uncaught it ends the process with the code 143."""

    def __init__(self, message: str = "", code: int = 143) -> None:
        super().__init__(code)
        self.message = message

    def __str__(self) -> str:
        return self.message


def end_in_one_line(error: BaseException, said: str) -> None:
    """If nothing catches ``error``, a script ends with ``said`` on standard error in place of a traceback.

    ``error`` stays a plain KeyboardInterrupt, so that the process still ends by SIGINT, and a shell loop around it too
    (docs/decisions/0081-one-line-after-ctrl-c.md). Nothing changes in an interactive session, or beside another hook.
    """
    error._cadenza_says = said  # type: ignore[attr-defined]
    if sys.excepthook is sys.__excepthook__ and not (hasattr(sys, "ps1") or sys.flags.interactive):
        sys.excepthook = _one_line


def _one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    said = getattr(error, "_cadenza_says", None)
    if said is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(said, file=sys.stderr)


class Warnings:
    """Notes that a signal came. Who looks at ``name`` decides when to act; a second Ctrl-C acts at once.

    Handlers exist only inside ``heeded``, in the main thread; earlier ones are called too, and come back afterwards.
    """

    def __init__(self, names: Sequence[str]) -> None:
        for name in names:
            if not isinstance(name, str) or not name.startswith("SIG"):
                raise ValueError(f'signals are names such as "SIGTERM", not {name!r}')
        self.names = tuple(names)
        self.name: str | None = None
        self.since = 0.0
        self._interrupted = False

    @property
    def came(self) -> bool:
        return self.name is not None

    def seconds(self) -> float:
        """How long ago the first signal came."""
        return time.monotonic() - self.since

    def error(self, message: str) -> BaseException:
        """What ends the run."""
        return KeyboardInterrupt(message) if self.name == "SIGINT" else Preempted(message)

    @contextmanager
    def heeded(self, *, anew: bool = True) -> Iterator[None]:
        """Notes what comes inside; ``anew`` forgets what came before."""
        self.name = None if anew else self.name
        self._interrupted = self.name == "SIGINT"
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {}
        try:
            for name in self.names:
                number = getattr(signal, name, None)  # not every system has every signal
                if number is not None:
                    before[number] = signal.signal(number, self._handler(name, signal.getsignal(number)))
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _handler(self, name: str, earlier: Any) -> Callable[[int, FrameType | None], None]:
        chained = earlier if callable(earlier) and earlier is not signal.default_int_handler else None

        def note(number: int, frame: FrameType | None) -> None:
            if name == "SIGINT" and self._interrupted and not _follows_launcher:
                raise KeyboardInterrupt
            self._interrupted = self._interrupted or name == "SIGINT"
            if self.name is None:
                self.name, self.since = name, time.monotonic()
            if chained is not None:
                with suppress(KeyboardInterrupt):  # such as from PySpark's handler: the run raises it when it has saved
                    chained(number, frame)

        return note
