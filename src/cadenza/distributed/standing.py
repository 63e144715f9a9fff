"""Where a run stands, as the thread that hears of failures knows it."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Any

from cadenza.distributed.failure import RankFailed
from cadenza.spans import place, whereabouts

if TYPE_CHECKING:
    from cadenza.run import Run

_PATIENCE = 5.0
"""Seconds after which a process that is still busy when another failed is interrupted."""


class Standing:
    """What the thread of the lifeline knows of a run. It never holds the run itself: to let go of a model there would
    end its process group in a thread that must not wait."""

    def __init__(self, run: Run, rank: int) -> None:
        self.thread, self.rank = run._thread, rank
        self.over = threading.Event()
        self.run = weakref.ref(run)
        self._deciding = threading.Lock()

    def interrupt(self, failure: dict[str, Any]) -> None:
        """Another process failed: what this one waits for was cut off. If it is busy with something else, it has a
        little time to come by, and is then interrupted."""
        if failure["rank"] != self.rank:
            threading.Thread(target=self._after_a_while, name="cadenza interrupts", daemon=True).start()

    def _after_a_while(self) -> None:
        if self.over.wait(_PATIENCE):
            return
        with self._deciding:
            if not self.over.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), ctypes.py_object(RankFailed))

    def end(self) -> None:
        """The run is over: nothing interrupts it any more, and an interruption that has not been raised yet is taken
        back, since it would come out of whatever follows."""
        with self._deciding:
            self.over.set()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), None)

    def where(self) -> str:
        run = None if self.over.is_set() else self.run()
        return "outside a run" if run is None else place(run)


def where_it_failed(run: Run, error: BaseException) -> str:
    """The place in the note that the run put on ``error``, or where the run stands."""
    for said in getattr(error, "__notes__", ()):
        if said.startswith("cadenza: raised "):
            return str(said.removeprefix("cadenza: raised ").removeprefix("in "))
    return f"the loop after {run._at.name}{whereabouts(run)}" if run._at else "the run"
