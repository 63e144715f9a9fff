"""Where a run stands, as the thread that hears of failures knows it."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from cadenza.distributed.failures.rank_errors import Interrupted
from cadenza.engine.dispatch import place, whereabouts

if TYPE_CHECKING:
    from cadenza.run import Run

_PATIENCE, _AT_LAST = 5.0, 30.0
"""Seconds after which a process that is still busy when another failed is interrupted, and after which one that cannot
be interrupted is ended."""


class Standing:
    """What the thread of the lifeline knows of a run. It never holds the run itself: to let go of a model there would
    end its process group in a thread that must not wait."""

    def __init__(self, run: Run, rank: int) -> None:
        self.thread, self.rank = run.thread, rank
        self.over = threading.Event()
        self.ended = False
        self.run = weakref.ref(run)
        self._deciding = threading.Lock()

    def interrupt(self, failure: dict[str, Any]) -> None:
        """Another process failed: what this one waits for was cut off. If it is busy with something else, it has a
        little time to come by, and is then interrupted."""
        if failure["rank"] != self.rank:
            watch = threading.Thread(
                target=self._after_a_while, args=(failure,), name="cadenza interrupts", daemon=True
            )
            watch.start()

    def _after_a_while(self, failure: dict[str, Any]) -> None:
        if self.over.wait(_PATIENCE):
            return
        with self._deciding:
            if self.over.is_set():
                return
            Interrupted.arrived.clear()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), ctypes.py_object(Interrupted))
        if not self.over.wait(_AT_LAST) and not Interrupted.arrived.is_set():
            self._end_process(failure)

    def _end_process(self, failure: dict[str, Any]) -> None:
        """The run waits for something that never comes, where no exception reaches it."""
        why = f"rank {failure['rank']} failed ({failure['said']})"
        place = "waits where nothing can interrupt it, and is ended; it stands here:"
        with contextlib.suppress(Exception):
            print(f"cadenza: {why}, but rank {self.rank} {place}", file=sys.__stderr__, flush=True)
            faulthandler.dump_traceback(sys.__stderr__ or 2)
        os._exit(1)

    def calm(self) -> None:
        """The run ends by itself: nothing interrupts it any more, and an interruption that has not been raised yet is
        taken back, since it would come out of whatever follows."""
        with self._deciding:
            self.over.set()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), None)

    def end(self) -> None:
        """The run is over."""
        self.calm()
        self.ended = True

    def where(self) -> str:
        run = None if self.ended else self.run()
        return "outside a run" if run is None else place(run)


def where_it_failed(run: Run, error: BaseException) -> str:
    """The place in the note that the run put on ``error``, or where the run stands."""
    for said in getattr(error, "__notes__", ()):
        if said.startswith("cadenza: raised "):
            return str(said.removeprefix("cadenza: raised ").removeprefix("in "))
    return f"the loop after {run.point.name}{whereabouts(run)}" if run.point else "the run"
