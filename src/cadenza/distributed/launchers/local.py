"""Processes on this machine, each a fresh interpreter; the function travels by value, so a notebook will do."""

from __future__ import annotations

import importlib.util
import math
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
from torch import distributed as dist

_LAST_WORDS = 15.0
"""Seconds that the others have to end by themselves when one process has ended with an error."""


class WorkerDied(RuntimeError):
    """A process ended without a word: killed, or out of memory."""


class WorkerTraceback(Exception):
    """The traceback of an exception in a worker, as text; it is the cause of the exception that is raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}" if self.args else ""


def start(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    workers: int,
    *,
    results: str = "main",
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Starts ``workers`` interpreters, waits for all of them, and returns rank 0's result, or all with ``results``.

    After ``timeout`` seconds all are ended and ``TimeoutError`` is raised. ``environment`` is added to theirs.
    """
    payload = pack(fn, args)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5)
    )
    with tempfile.TemporaryDirectory(prefix="cadenza-launch-") as folder:
        crew = [Worker(rank, workers, store.port, Path(folder), environment or {}) for rank in range(workers)]
        try:
            for worker in crew:
                worker.hand_over(payload)
            wait_for(crew, timeout)
        finally:
            for worker in crew:
                worker.end()
        raise_first(crew)
        return [worker.result() for worker in crew] if results == "all" else crew[0].result()


def pack(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The function and its arguments as bytes. What a fresh interpreter could not import travels by value."""
    by_value = []
    for module in {getattr(one, "__module__", None) for one in (fn, getattr(fn, "func", None), *args)}:
        if module not in (None, "__main__") and module in sys.modules and not _can_be_imported(str(module)):
            cloudpickle.register_pickle_by_value(sys.modules[str(module)])
            by_value.append(sys.modules[str(module)])
    try:
        return pickle.dumps([[str(part) for part in sys.path], cloudpickle.dumps((fn, args))])
    finally:
        for known in by_value:
            cloudpickle.unregister_pickle_by_value(known)


def _can_be_imported(module: str) -> bool:
    try:
        found = importlib.util.find_spec(module.split(".")[0])
    except (ImportError, ValueError):
        return False
    return found is not None


class Worker:
    """One process: what it was given, and what it left behind."""

    def __init__(self, rank: int, size: int, port: int, folder: Path, extra: Mapping[str, str]) -> None:
        self.rank = rank
        self.file = folder / f"result-{rank}"
        threads = str(max(1, (os.cpu_count() or 1) // size))
        environment = {
            "OMP_NUM_THREADS": threads,
            **os.environ,
            **extra,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the meeting point is here, so no port can be taken in between
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        command = [sys.executable, "-m", "cadenza.distributed.launchers.worker", str(self.file)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        self.ended_at: float | None = None
        self.ended_here = False

    def hand_over(self, payload: bytes) -> None:
        """Sends the work in a thread of its own: a worker that dies early must not block the others' start."""

        def write() -> None:
            pipe = self.process.stdin
            try:
                if pipe is not None:
                    pipe.write(len(payload).to_bytes(8, "little") + payload)
                    pipe.flush()
            except OSError:
                pass  # it has died; what it left behind says why

        threading.Thread(target=write, daemon=True).start()

    def is_over(self) -> bool:
        if self.process.poll() is None:
            return False
        self.ended_at = self.ended_at or time.monotonic()
        return True

    def failed(self) -> bool:
        return self.is_over() and self.process.returncode != 0

    def end(self) -> None:
        """Ends the process if it still runs, and lets go of the pipe."""
        if self.process.poll() is None:
            self.ended_here = True
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except OSError:
                pass  # what was still to be written has no reader any more

    def left(self) -> dict[str, Any] | None:
        """What the process wrote at its end, or None if it could not."""
        return pickle.loads(self.file.read_bytes()) if self.file.exists() else None

    def result(self) -> Any:
        found = self.left()
        return None if found is None else pickle.loads(found["result"])


def wait_for(crew: list[Worker], timeout: float | None) -> None:
    """Waits until all have ended; when one failed, the others have a little time to end by themselves."""
    until = None if timeout is None else time.monotonic() + timeout
    while not all(worker.is_over() for worker in crew):
        failed = [worker.ended_at for worker in crew if worker.failed() and worker.ended_at is not None]
        if failed and time.monotonic() > min(failed) + _LAST_WORDS:
            return
        if until is not None and time.monotonic() > until:
            late = ", ".join(str(worker.rank) for worker in crew if not worker.is_over())
            raise TimeoutError(f"the processes of ranks {late} have not ended after {timeout:g} seconds")
        time.sleep(0.02)


def raise_first(crew: list[Worker]) -> None:
    """Raises the first error of a worker: one that is its own rather than the news of another's."""
    errors = [(worker, found) for worker in crew if (found := worker.left()) is not None and "error" in found]
    silent = [w for w in crew if w.process.returncode != 0 and w.left() is None and not w.ended_here]
    own = sorted((pair for pair in errors if not pair[1]["news"]), key=lambda pair: pair[1]["when"])
    for worker, found in own[:1]:
        raise_told(worker.rank, found)
    for worker in sorted(silent, key=lambda one: one.ended_at or math.inf)[:1]:
        code = worker.process.returncode
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise WorkerDied(f"the process of rank {worker.rank} of {len(crew)} was ended {how}, and left no error behind")
    for worker, found in errors[:1]:
        raise_told(worker.rank, found)


def raise_told(rank: int, found: dict[str, Any]) -> NoReturn:
    """Raises what the process of ``rank`` told of its error, or a RuntimeError in its place if that cannot travel."""
    cause = WorkerTraceback(found["text"])
    try:
        error = pickle.loads(found["error"])
    except Exception:
        raise RuntimeError(f"rank {rank}: {found['said']}") from cause
    error.add_note(f"cadenza: raised in the process of rank {rank}")
    raise error from cause
