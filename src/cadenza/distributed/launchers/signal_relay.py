"""Signals to the process that called ``launch``: they are passed on, so that the workers can save (decision 0071)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from cadenza.resume.signals import Warnings

if TYPE_CHECKING:
    from cadenza.distributed.launchers.local import Worker

PASSED_ON = ("SIGTERM", "SIGINT", "SIGUSR1")
INTERRUPTED = (130, 143)
"""Exit codes of a worker that a signal ended in order."""


class Relay:
    """Passes the first signal on to the workers, and notes when they must have ended.

    A second Ctrl-C raises KeyboardInterrupt, which ends them at once. Only the main thread can do this; in any other
    thread the workers stay in the process group of this process, and the terminal reaches them itself.
    """

    def __init__(self, grace: float) -> None:
        self.active = os.name == "posix" and threading.current_thread() is threading.main_thread()
        names = [name for name in PASSED_ON if self.active and not _is_ignored(getattr(signal, name))]
        self.heard, self.grace = Warnings(names), grace
        self.until: float | None = None

    @contextlib.contextmanager
    def listening(self, crew: list[Worker]) -> Iterator[None]:
        """Signals are noted inside. Ctrl-Z stops the workers too, which the terminal does not reach."""

        def pause(number: int, frame: FrameType | None) -> None:
            _send(crew, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)  # returns when the shell continues this process
            _send(crew, signal.SIGCONT)

        with self.heard.heeded():
            if not self.active or signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
                yield
                return
            signal.signal(signal.SIGTSTP, pause)
            try:
                yield
            finally:
                signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def pass_on(self, crew: Sequence[Worker]) -> bool:
        """Passes on what came since the last call, once. Returns whether the time to save is over."""
        if self.heard.name is not None and self.until is None:
            self.until = time.monotonic() + self.grace
            again = "Ctrl-C again" if self.heard.name == "SIGINT" else "Ctrl-C twice"
            with contextlib.suppress(OSError):  # the terminal may be gone
                print(
                    f"cadenza: {self.heard.name} came. The processes have {self.grace:g} seconds to save and end; "
                    f"{again} ends them at once.",
                    file=sys.stderr,
                    flush=True,
                )
            for worker in crew:
                worker.warn(getattr(signal, self.heard.name))
        return self.until is not None and time.monotonic() > self.until

    def raise_heard(self, crew: Sequence[Worker]) -> None:
        """After the workers have ended: raises KeyboardInterrupt or ``Preempted`` if a signal ended them.

        An error that a worker raised while it saved is not hidden by this, and a result that all of them returned after
        the signal is a result: the function caught it.
        """
        if not self.heard.came:
            return
        left = [worker.left() for worker in crew]
        failed = [found for found in left if found is not None and "error" in found and not found["news"]]
        if any(found["code"] not in INTERRUPTED for found in failed):
            return
        if self.until is not None and not any(worker.failed() for worker in crew):
            return
        raise self.heard.error(self._said(crew, [found["said"].partition(": ")[2] for found in failed])) from None

    def _said(self, crew: Sequence[Worker], told: Sequence[str]) -> str:
        killed = ", ".join(str(worker.rank) for worker in crew if worker.ended_here and worker.begun)
        if killed:
            after = f"had not ended after {self.grace:g} seconds and were killed"
            return f"{self.heard.name} came; the processes of ranks {killed} {after}"
        return next(filter(None, told), f"{self.heard.name} came; the processes were ended")


def _is_ignored(number: signal.Signals) -> bool:
    """What was ignored when this process began stays ignored: a shell does so for what it runs in the background."""
    return signal.getsignal(number) is signal.SIG_IGN


def _send(crew: Sequence[Worker], number: signal.Signals) -> None:
    for worker in crew:
        worker.process.send_signal(number)
