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

from cadenza.distributed.launchers.signal_relay import INTERRUPTED, Relay

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
    grace: float = 300.0,
) -> Any:
    """Starts ``workers`` interpreters, waits for all of them, and returns rank 0's result, or all with ``results``.

    After ``timeout`` seconds all are ended and ``TimeoutError`` is raised. ``environment`` is added to theirs. A signal
    to this process is passed on to them, and they have ``grace`` seconds to save and end.
    """
    payload, relay = pack(fn, args), Relay(grace)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5)
    )
    with tempfile.TemporaryDirectory(prefix="cadenza-launch-") as folder:
        crew: list[Worker] = []
        with relay.listening(crew):
            try:
                for rank in range(workers):
                    crew.append(Worker(rank, workers, store.port, Path(folder), environment or {}, relay))
                    crew[-1].hand_over(payload)
                wait_for(crew, timeout, relay)
            finally:
                for worker in crew:
                    worker.end()
        relay.raise_heard(crew)
        raise_first(crew)
        return [worker.result() for worker in crew] if results == "all" else crew[0].result()


def pack(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The function and its arguments as bytes. What a fresh interpreter could not import travels by value; finders of
    modules that can be pickled go in front, so that a worker finds what the function imports."""
    by_value = []
    finders = [one for one in sys.meta_path if getattr(one, "travels", False)]
    for module in {getattr(one, "__module__", None) for one in (fn, getattr(fn, "func", None), *args)}:
        if module not in (None, "__main__") and module in sys.modules and not _can_be_imported(str(module)):
            cloudpickle.register_pickle_by_value(sys.modules[str(module)])
            by_value.append(sys.modules[str(module)])
    try:
        return pickle.dumps([[str(part) for part in sys.path], cloudpickle.dumps((finders, fn, args))])
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

    def __init__(self, rank: int, size: int, port: int, folder: Path, extra: Mapping[str, str], relay: Relay) -> None:
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
        command = [sys.executable, "-m", "cadenza.distributed.launchers.worker", str(self.file), str(relay.grace)]
        # In a session of its own, Ctrl-C in the terminal comes to it once: from the relay.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=relay.active)
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

    @property
    def begun(self) -> bool:
        """Whether it has met the others and called the function."""
        return self.file.with_suffix(".begun").exists()

    def warn(self, number: int) -> None:
        """Passes a signal on. A process that has not begun has nothing to save, and is ended."""
        if self.begun:
            self.process.send_signal(number)
        else:
            self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.ended_here = True
            self.process.kill()

    def end(self) -> None:
        """Ends the process if it still runs, and lets go of the pipe."""
        self.kill()
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


def wait_for(crew: list[Worker], timeout: float | None, relay: Relay) -> None:
    """Waits until all have ended; when one failed, the others have a little time to end by themselves.

    One that was interrupted by a signal may have ended before rank 0 has written everything: that is given more time.
    """
    until = None if timeout is None else time.monotonic() + timeout
    while not all(worker.is_over() for worker in crew):
        if time.monotonic() > _last_moment(crew, relay) or relay.pass_on(crew):
            return
        if until is not None and time.monotonic() > until:
            late = ", ".join(str(worker.rank) for worker in crew if not worker.is_over())
            raise TimeoutError(f"the processes of ranks {late} have not ended after {timeout:g} seconds")
        time.sleep(0.02)


def raise_first(crew: list[Worker]) -> None:
    """Raises the first error of a worker: one that is its own rather than the news of another's."""
    errors = [(worker, found) for worker in crew if (found := worker.left()) is not None and "error" in found]
    silent = [w for w in crew if w.process.returncode != 0 and w.left() is None and not w.ended_here]
    own = sorted(
        (pair for pair in errors if not pair[1]["news"]),
        key=lambda pair: (pair[1]["code"] in INTERRUPTED, pair[1]["when"]),
    )
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


def _last_moment(crew: list[Worker], relay: Relay) -> float:
    """Until when the others are waited for, if one failed."""
    failed = [worker for worker in crew if worker.failed()]
    interrupted = all(worker.process.returncode in INTERRUPTED for worker in failed)
    first = min((worker.ended_at for worker in failed if worker.ended_at is not None), default=math.inf)
    return first + (relay.grace if interrupted else _LAST_WORDS)
