"""What the other processes raise when one of them fails."""

from __future__ import annotations

import threading
import traceback
from typing import Any


class RankFailed(RuntimeError):
    """Another process failed first: its rank, the point at which it stood, and what it raised.

    >>> RankFailed({"rank": 1, "where": "Fault at after_step", "said": "ValueError: odd", "text": ""}).rank
    1
    """

    is_news = True
    """It tells of an error elsewhere, which whoever collects errors should rather show."""

    def __init__(self, failure: dict[str, Any] | None = None) -> None:
        self.failure = dict(failure or {"rank": None, "where": "an unknown place", "said": "it failed", "text": ""})
        self.rank: int | None = self.failure["rank"]
        self.where: str = self.failure["where"]
        super().__init__(self.failure)
        if self.failure["text"]:
            self.add_note(f"cadenza: what rank {self.rank} raised:\n{self.failure['text'].rstrip()}")

    def __str__(self) -> str:
        return f"rank {self.rank} failed in {self.where}: {self.failure['said']}"


class Parted(RankFailed):
    """The same, said of a run that begins after the failure: the processes cannot be used any more."""

    def __str__(self) -> str:
        return f"the processes lost each other when {super().__str__()}: start them anew"


class Interrupted(RankFailed):
    """The same, raised by another thread in the midst of what a process does. ``arrived`` says that it was."""

    arrived = threading.Event()

    def __init__(self, failure: dict[str, Any] | None = None) -> None:
        self.arrived.set()
        super().__init__(failure)


def told(rank: int, where: str, error: BaseException) -> dict[str, Any]:
    """A failure as it is sent to the others."""
    text = "".join(traceback.format_exception(error))[-20000:]
    return {"rank": rank, "where": where, "said": f"{type(error).__name__}: {error}"[:2000], "text": text}


def gone(rank: int) -> dict[str, Any]:
    """What is known of a process whose connection closed without a word."""
    said = "its process is gone without a word (killed, out of memory, or its machine lost)"
    return {"rank": rank, "where": "a place it did not tell", "said": said, "text": ""}


_OF_THE_NETWORK = ("gloo", "nccl", "connection", "peer", "socket", "aborted", "timed out", "timeout", "broken pipe")


def may_be_news(error: BaseException) -> bool:
    """Whether ``error`` looks like what a collective raises when the process at the other end is gone."""
    words = f"{type(error).__name__} {error}".lower()
    return isinstance(error, RuntimeError | OSError) and any(word in words for word in _OF_THE_NETWORK)
