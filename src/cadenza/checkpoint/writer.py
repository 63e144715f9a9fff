"""Saving while the training goes on: a copy in main memory, then a thread that writes it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadenza.checkpoint.backends.retry import Attempts, Failure
from cadenza.checkpoint.backends.spill import Outbox
from cadenza.checkpoint.format.manifest import check_name, encode_meta
from cadenza.checkpoint.format.packing import Snapshot
from cadenza.checkpoint.format.reading import SHARDS
from cadenza.checkpoint.multi_process import Crew, Joint
from cadenza.checkpoint.problems import SaveFailed
from cadenza.checkpoint.retention import check_counts
from cadenza.checkpoint.staging import Draft
from cadenza.checkpoint.store import Apart, Runs, Saved, Shelf
from cadenza.foundation.arguments import one_of

log = logging.getLogger("cadenza.checkpoint")
Store = Callable[[], tuple[str, str | None]]
"""Stores a checkpoint; the name of its folder, and what is wrong if that is not on the shelf."""
NICE = 10
"""How far the thread that writes steps back; see ``nice``."""


@dataclass(frozen=True)
class Outcome:
    """How a save ended. ``name`` is the folder of the checkpoint, or None if it was stored nowhere."""

    asked: str
    name: str | None
    meta: dict[str, Any]
    size: int
    copying: float
    """Seconds that the caller waited for the copy to main memory."""
    writing: float
    deleted: tuple[str, ...] = ()
    problem: str | None = None
    """Why it is not where it should be: it is in the spill folder, or nowhere."""


class Writer:
    """Saves states on a shelf, one after the other, in the background.

    ``save`` returns as soon as the state is copied. At most one checkpoint is written at a time: a ``save`` that comes
    earlier waits. After each commit all but the newest ``keep_last`` and the best ``keep_best`` are deleted; with
    ``runs``, only of those that these runs wrote (``meta["run"]``).

    A remote store gets ``retries`` more attempts, the first after ``backoff`` seconds, each later one after twice as
    many. If all fail, the checkpoint is stored in the folder ``spill``, and so are those after it until the store
    answers again. Then they are moved there, in the background. If ``spill`` fails too, or a disk is full,
    ``on_failure`` says whether ``poll`` warns or raises.

    >>> import tempfile, torch
    >>> writer = Writer(Shelf(tempfile.mkdtemp()), keep_last=1)
    >>> writer.save("step=1", {"model": {"weight": torch.ones(2)}})
    >>> writer.save("step=2", {"model": {"weight": torch.zeros(2)}})
    >>> [outcome.name for outcome in writer.close()], writer.shelf.names(), writer.problems
    (['000001-step=1', '000002-step=2'], ['000002-step=2'], [])
    """

    def __init__(
        self,
        shelf: Shelf,
        *,
        keep_last: int | None = None,
        keep_best: int = 0,
        background: bool = True,
        on_failure: str = "warn",
        retries: int = 4,
        backoff: float = 1.0,
        spill: str | Path | None = None,
        runs: Runs = None,
    ) -> None:
        check_counts(keep_last, keep_best)
        one_of("on_failure", on_failure, ("warn", "raise"))
        self.shelf = shelf
        self.keep_last, self.keep_best = keep_last, keep_best
        self.background, self.on_failure, self.runs = background, on_failure, runs
        self.problems: list[str] = []
        """What went wrong, in the order in which it did; to be said at the end."""
        self.attempts = Attempts(shelf, retries, backoff)
        if shelf.store.remote:  # a disk needs no outbox: a second folder does not help if the disk is full
            unsent = _spill_shelf(shelf, spill)
            self.attempts.outbox = Outbox(unsent, shelf, self.attempts.outage, keep_best, self._retain, runs)
        self.speed = Speed()
        self._snapshot, self._second = Snapshot(), Snapshot()
        self._thread: threading.Thread | None = None
        self._done: list[Outcome] = []
        self._failed: list[Exception] = []
        self._died: BaseException | None = None
        self._check: Callable[[], None] = lambda: None
        self._begun = 0.0
        self._size = 0

    def write_alone(self, runs: Runs, check: Callable[[], None] | None = None) -> None:
        """From here on a save ends with an error if another run writes to the same place, and retention leaves alone
        what other ``runs`` wrote. ``check`` is called before each save; it raises if the place was lost."""
        self.runs, self._check = runs, check or self._check
        if self.attempts.outbox is not None:
            self.attempts.outbox.runs = runs
        self.shelf.write_alone()

    # Saving ----------------------------------------------------------------------------------------------------------

    def save(self, name: str, state: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> None:
        """Copies ``state`` and begins to write it; waits before if one is still being written."""
        check_name(name)
        encode_meta(meta or {})  # refused here, not in the thread
        self.attempts.hurry()
        self._join()
        self._raise()
        start, noted = time.perf_counter(), dict(meta or {})
        packed = self._snapshot.take(dict(state))
        self._begin(name, packed.size, noted, start, lambda: self.attempts.write(name, packed, noted))

    def begin_together(self, name: str) -> Draft | None:
        """On rank 0: waits for what is still being written, and begins a checkpoint that several processes write. None
        if the store does not even take its folder; then this save has failed."""
        check_name(name)
        self.attempts.hurry()
        self._join()
        self._raise()
        self._check()
        try:
            return self.attempts.begin(name)
        except Failure as error:
            self._failed.append(error)
            self._note(str(error))
        self._raise()
        return None

    def save_together(
        self, draft: Draft, crew: Crew, tree: Mapping[str, Any] | None, shard: Mapping[str, Any], meta: dict[str, Any]
    ) -> None:
        """Saves the part ``shard`` of this process; rank 0 gives the ``tree`` of all as well, and commits when every
        process of the ``crew`` has written its part."""
        self.attempts.hurry()
        self._join()
        self._raise()
        start = time.perf_counter()
        common = None if tree is None else self._snapshot.take(dict(tree))
        joint = Joint(draft, crew, common, self._second.take({SHARDS: dict(shard)}))
        self._begin(draft.name, joint.size, meta, start, lambda: (self.attempts.write_together(joint, meta), None))

    def _begin(self, name: str, size: int, meta: dict[str, Any], start: float, store: Store) -> None:
        self._begun, self._size = time.perf_counter(), size
        job = self._job(name, size, meta, self._begun - start, store)
        if not self.background:
            job()
            self._raise()
            return
        # A daemon: an interpreter that ends without ``close`` does not hang, and leaves a draft, no checkpoint.
        self._thread = threading.Thread(target=_behind, args=(job,), name="cadenza checkpoint", daemon=True)
        self._thread.start()

    def _job(self, name: str, size: int, meta: dict[str, Any], copying: float, store: Store) -> Callable[[], None]:
        def job() -> None:
            try:
                self._write(name, size, meta, copying, store)
            except BaseException as error:  # handed on to the thread that asks
                self._died = error

        return job

    def _write(self, name: str, size: int, meta: dict[str, Any], copying: float, store: Store) -> None:
        start = time.perf_counter()
        problem: str | None = None
        folder: str | None = None
        deleted: list[str] = []
        try:
            self._check()
            folder, problem = store()
            if problem is None:
                deleted = self._retain()
        except Failure as error:
            problem = str(error)
            self._failed.append(error)
        seconds = time.perf_counter() - start
        if problem is None:
            self.speed.measured(size, copying + seconds)
        else:
            self._note(problem)
        self._done.append(Outcome(name, folder, meta, size, copying, seconds, tuple(deleted), problem))

    def _note(self, problem: str) -> None:
        log.warning("%s", problem)
        self.problems.append(problem)

    def _retain(self) -> list[str]:
        if self.keep_last is None:
            return []
        try:
            return self.shelf.retain(self.keep_last, self.keep_best, self.runs)
        except Exception as error:  # the checkpoint is committed: what could not be deleted is tried again next time
            log.warning("old checkpoints in %s could not be deleted: %s", self.shelf.store, error)
            return []

    # Waiting ---------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written now."""
        return self._thread is not None and self._thread.is_alive()

    def poll(self) -> list[Outcome]:
        """The saves that ended since this was last asked; does not wait. Raises what went wrong, if so configured."""
        self._raise()
        done, self._done = self._done, []
        return done

    def wait(self) -> list[Outcome]:
        """Waits until nothing is being written; then as ``poll``."""
        self._join()
        return self.poll()

    def close(self, *, send: bool = True) -> list[Outcome]:
        """Waits, and lets go of the memory for copies. The writer can be used again. What a store did not take is moved
        there if it answers now; not without ``send``, for a process that has to end soon."""
        self._join()
        if self.attempts.outbox is not None:
            self.attempts.outbox.finish(send=send)
        self._snapshot, self._second = Snapshot(), Snapshot()
        return self.poll()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _raise(self) -> None:
        if self._died is not None:
            died, self._died = self._died, None
            raise died
        failed, self._failed = self._failed, []
        if failed and self.on_failure == "raise":
            raise SaveFailed(str(failed[-1])) from failed[-1]

    # Before and between ----------------------------------------------------------------------------------------------

    def recover(self, part: str = "", apart: Apart | None = None) -> Saved | None:
        """The newest valid checkpoint to go on from, be it on the shelf or in the spill folder; None if there is none.

        For the one who saves next: newer ones that are torn or damaged are set aside, and named in a warning. What is
        in the spill folder is moved to the store.
        """
        self._join()
        outbox = self.attempts.outbox
        found = [
            self.shelf.newest_valid(part, apart),
            None if outbox is None else outbox.spill.newest_valid(part, apart),
        ]
        self.shelf.set_aside(found[0].passed_over if found[0] is not None else None)
        newest = max((one for one in found if one is not None), key=lambda one: one.number, default=None)
        if outbox is not None and found[1] is not None and newest is not None:
            outbox.runs = self.runs if self.runs is not None else {newest.meta.get("run")}
            outbox.move()
        return newest

    def estimate(self, size: int | None = None) -> float | None:
        """About how many seconds a save of ``size`` bytes takes until it is committed, by the slowest of the last few.

        Without ``size`` as many as the last one had. A save that is being written now is waited for, so the rest of it
        counts too. None before the first save was measured.
        """
        own = self.speed.seconds(self._size if size is None else size)
        if own is None or not self.busy:
            return own
        rest = (self.speed.seconds(self._size) or 0.0) - (time.perf_counter() - self._begun)
        return own + max(rest, 0.0)


def _behind(job: Callable[[], None]) -> None:
    """Does ``job`` in this thread, behind those that train. Only Linux gives a thread a priority of its own."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            this = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, this, min(os.getpriority(os.PRIO_PROCESS, this) + NICE, 19))
    job()


def _spill_shelf(shelf: Shelf, spill: str | Path | None) -> Shelf:
    """Where checkpoints go that a remote store does not take."""
    if spill is None:
        spill = Path("unsent-checkpoints") / re.sub("[^A-Za-z0-9._-]+", "_", str(shelf.store))
    return Shelf(spill)


class Speed:
    """Sizes and seconds of the last few saves.

    >>> speed = Speed()
    >>> speed.seconds(100) is None
    True
    >>> speed.measured(100, 2.0); speed.measured(100, 1.0)
    >>> speed.seconds(300)
    6.0
    """

    def __init__(self) -> None:
        self._saves: deque[tuple[int, float]] = deque(maxlen=5)

    def measured(self, size: int, seconds: float) -> None:
        self._saves.append((size, seconds))

    def seconds(self, size: int) -> float | None:
        """For ``size`` bytes at the slowest rate that was seen, and never less than the slowest of smaller saves."""
        if not self._saves:
            return None
        at_rate = max(seconds / max(saved, 1) for saved, seconds in self._saves) * size
        return max([at_rate, *(seconds for saved, seconds in self._saves if saved <= size)])
