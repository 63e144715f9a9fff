"""Jobs that a thread does one after the other, while the training continues."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("cadenza")
Job = Callable[[], None]


class Background:
    """A queue of jobs and the daemon thread that does them. A job that hangs never keeps the process alive.

    >>> done = []
    >>> background = Background("an example")
    >>> background.post(lambda: done.append(1))
    >>> background.finish(5.0), done
    (True, [1])
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending = False

    def post(self, job: Job) -> None:
        with self._changed:
            self._jobs.append(job)
            self._ending = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"cadenza {self.name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self, seconds: float) -> bool:
        """Waits until all jobs are done and the thread has ended, for at most so long; False if that was not enough.
        What is left is done afterwards, as long as the process lives."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._thread is None, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._ending)
                if not self._jobs:
                    self._thread = None
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException:  # the jobs after it are done all the same
                log.exception("a job of %s failed", self.name)
