"""Processes for tests, forked from one that has imported torch.

A fresh interpreter imports torch for two to four seconds, which is longer than what most tests do in it. Tests of
``launch``, of imports and of start-up use fresh interpreters. Tests that need several ranks, or a program that they
kill, get them from here.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import runpy
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from torch import distributed as dist

from cadenza.distributed.launchers.local import WorkerDied, pack, raise_told
from cadenza.distributed.launchers.worker import call, told

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch._dynamo",  # imported by every optimizer
        "torch.distributed.fsdp",
        "cadenza.callbacks",
        "cadenza.checkpoint",
        "cadenza.distributed",
        "cadenza.testing",
        "cloudpickle",
        "pytest",
        "sklearn.datasets",  # what the examples train on
        "tests.processes",
    ]
)


# Several ranks ------------------------------------------------------------------------------------------------------


def ranks(fn: Callable[..., Any], *args: Any, workers: int = 2, results: str = "main", timeout: float = 280.0) -> Any:
    """Calls ``fn(*args)`` in each process, as ``cadenza.launch`` does, and returns or raises what that would."""
    payload = pack(fn, args)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5)
    )
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(rank)) for rank in range(workers)]
        crew = [
            started(_rank, _environment(rank, workers, store.port), files[rank], payload) for rank in range(workers)
        ]
        _wait(crew, timeout)
        found = [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]
    _raise_first(crew, found)
    answers = [pickle.loads(one["result"]) for one in found if one is not None]
    return answers if results == "all" else answers[0]


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    return {
        **os.environ,
        **{name: str(number) for name, number in numbers.items()},
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def _rank(file: Path, payload: bytes) -> None:
    search, work = pickle.loads(payload)
    sys.path[:] = search
    try:
        found: dict[str, Any] = {"result": call(work)}
    except BaseException as error:
        found = told(error)
    draft = file.with_suffix(".part")
    draft.write_bytes(pickle.dumps(found))
    draft.replace(file)
    sys.stdout.flush()
    os._exit(int(found.get("code", 0)))


def _wait(crew: Sequence[BaseProcess], timeout: float) -> None:
    """Waits for all; if one has died without a word, the others have a minute to notice."""
    until = time.monotonic() + timeout
    try:
        while any(one.is_alive() for one in crew):
            if any(one.exitcode for one in crew):
                until = min(until, time.monotonic() + 60)
            if time.monotonic() > until:
                raise TimeoutError("the processes have not ended in time")
            time.sleep(0.01)
    finally:
        for one in crew:
            one.kill()
            one.join()


def _raise_first(crew: Sequence[BaseProcess], found: Sequence[dict[str, Any] | None]) -> None:
    errors = [(rank, one) for rank, one in enumerate(found) if one is not None and "error" in one]
    own = sorted((pair for pair in errors if not pair[1]["news"]), key=lambda pair: pair[1]["when"])
    for rank, one in own[:1]:
        raise_told(rank, one)
    for rank, (process, one) in enumerate(zip(crew, found, strict=True)):
        if one is None:
            raise WorkerDied(
                f"the process of rank {rank} of {len(crew)} was ended by signal {-(process.exitcode or 0)}"
            )
    for rank, one in errors[:1]:
        raise_told(rank, one)


# One program ---------------------------------------------------------------------------------------------------------


class Program:
    """A Python program in a process of its own, in a session of its own; ``pid`` is the process to signal."""

    def __init__(
        self,
        what: str | Path,
        *arguments: object,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        strict: bool = False,
    ) -> None:
        words = [str(one) for one in arguments]
        environment = {"OMP_NUM_THREADS": "1", **(os.environ if env is None else env)}
        pipes = [CONTEXT.Pipe(duplex=False) for _ in range(2)]
        ends = [end for _, end in pipes]
        self.process = started(_program, environment, what, words, str(cwd or os.getcwd()), ends, strict)
        self.pid = self.process.pid
        for end in ends:
            end.close()
        self._heard = [Listener(end) for end, _ in pipes]

    def wait(self, timeout: float = 280.0) -> CompletedProcess[str]:
        """Waits for its end; the exit code is negative after a signal, as ``subprocess`` has it."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"the program has not ended after {timeout:g} seconds: {self.errors[-2000:]}")
        return CompletedProcess([], self.process.exitcode, *(one.text() for one in self._heard))

    @property
    def errors(self) -> str:
        """What it has written to standard error so far."""
        return b"".join(self._heard[1].parts).decode()

    def is_alive(self) -> bool:
        return self.process.is_alive()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Listener:
    """Reads a pipe in a thread, so that the program never waits for it."""

    def __init__(self, end: Connection) -> None:
        self.end, self.parts = end, list[bytes]()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while part := os.read(self.end.fileno(), 65536):
            self.parts.append(part)
        self.end.close()

    def text(self) -> str:
        self._thread.join(60)  # a child of the program may hold the pipe open for longer
        return b"".join(self.parts).decode()


def run(what: str | Path, *arguments: object, **options: Any) -> CompletedProcess[str]:
    """Runs code (a string) or a script (a path) to its end."""
    return Program(what, *arguments, **options).wait()


def _program(what: str | Path, words: list[str], cwd: str, ends: list[Connection], strict: bool) -> None:
    os.setsid()
    for descriptor, end in enumerate(ends, start=1):
        os.dup2(end.fileno(), descriptor)
        end.close()
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    warnings.resetwarnings()
    warnings.simplefilter("error" if strict else "default")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["-c" if isinstance(what, str) else str(what), *words]
    sys.orig_argv = [sys.executable, *(["-c", what] if isinstance(what, str) else [str(what)]), *words]
    sys.path[0:0] = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), cwd if isinstance(what, str) else ""]
    if isinstance(what, str):
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(str(what), run_name="__main__")


# Starting -----------------------------------------------------------------------------------------------------------


def started(fn: Callable[..., None], environment: Mapping[str, str], *args: Any) -> BaseProcess:
    process = CONTEXT.Process(target=_begin, args=(dict(environment), fn, args))
    process.start()
    return process


def _begin(environment: dict[str, str], fn: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with suppress(ImportError):
        import torch

        torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    fn(*args)
