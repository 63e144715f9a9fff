"""The log of a run: what Cadenza says, what was warned of, and a line for each epoch."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from cadenza.experiment.secrets import masked_text
from cadenza.foundation.warn import SHOWN
from cadenza.foundation.whole_files import append_whole


class LogFile(logging.Handler):
    """Appends lines to a file. Those that cannot be written wait, the last thousand of them."""

    def __init__(self, path: Path, heard: Callable[[str, str], None]) -> None:
        super().__init__(logging.INFO)
        self.path, self.heard = path, heard
        self._unwritten: deque[str] = deque(maxlen=1000)

    def write(self, text: str) -> None:
        """Adds ``text`` with the time in front."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        self._unwritten.append(f"{stamp} {masked_text(text)}\n")
        with contextlib.suppress(OSError):
            append_whole(self.path, "".join(self._unwritten).encode())
            self._unwritten.clear()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            said = record.getMessage()
        except Exception:
            self.handleError(record)
            return
        self.write(f"{record.levelname.lower()}: {said}")
        if record.levelno >= logging.WARNING:
            self.heard("warning", said)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, records of the ``cadenza`` loggers and warnings are written too; both also go where they went."""
        logger = logging.getLogger("cadenza")

        def hear(message: Warning | str, category: type[Warning]) -> None:
            self.write(f"warning: {category.__name__}: {message}")
            self.heard("warning", str(message))

        logger.addHandler(self)
        try:
            with SHOWN.heard_by(hear):
                yield
        finally:
            logger.removeHandler(self)
