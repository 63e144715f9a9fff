"""One start of a training in a process of its own, which may be interrupted."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from cadenza.callback import Callback
from cadenza.certify.compare import write_end
from cadenza.certify.probes import Interruption, Kill, Killer, Witness
from cadenza.foundation.rng import seed_everything
from cadenza.foundation.torch_private import COMPILER

Train = Callable[[Path, list[Callback]], object] | str
PRELOADED = ["cadenza.certify.certify", "cadenza.callbacks", "cadenza.checkpoint", COMPILER]
"""What a training needs. Every optimizer imports the last when it is made, which takes longer than a small training."""
EXPECTED = {
    "SIGKILL": ("WorkerDied", "RankFailed"),  # of a rank; the process itself leaves nothing
    "SIGTERM": ("Preempted", "WorkerDied", "RankFailed"),
    "SIGINT": ("KeyboardInterrupt", "WorkerDied", "RankFailed"),
    "exception": (Interruption.__name__, "RankFailed"),
}
"""What a training may raise when it is interrupted; anything else is a failure."""


class Trial:
    """A training with a folder of its own, ``root / name``, that is started until it comes to its end."""

    def __init__(self, train: Train, root: str | Path, name: str) -> None:
        self.train, self.folder, self.notes = train, Path(root) / name, Path(root) / f"{name}-notes"
        self.seconds = 0.0
        for folder in (self.folder, self.notes):
            folder.mkdir()

    @property
    def points(self) -> int:
        return int((self.notes / "points").read_text(encoding="utf-8"))

    def start(self, kill: Kill | None = None, *, limit: float | None = None) -> str:
        """Runs the training until it ends or is killed; returns "ended", or "killed" with where that was."""
        for name in ("began", "struck", "error.json"):
            (self.notes / name).unlink(missing_ok=True)
        process = _context().Process(target=_child, args=(self.train, self.folder, self.notes, kill))
        with _leaks_expected():
            process.start()
        try:
            struck = self._wait(process, kill, limit)
        finally:
            _end(process)
        if process.exitcode != 0:
            self._check(None if struck is None else kill, process.exitcode)
        return "ended" if process.exitcode == 0 else f"killed {struck or ''}".rstrip()

    def _wait(self, process: Any, kill: Kill | None, limit: float | None) -> str | None:
        """Waits for the end of ``process``; returns where it was interrupted, None if it was not."""
        struck = None
        while not (self.notes / "began").exists() and process.is_alive():
            time.sleep(0.002)
        began = time.perf_counter()
        if kill is not None and kill.seconds is not None:
            process.join(kill.seconds)
            if process.is_alive():
                struck = ""
                with contextlib.suppress(ProcessLookupError):
                    kill.send(process.pid)
        process.join(limit)
        if process.is_alive():
            raise RuntimeError(f"the training did not end within {limit:.0f} s ({kill or 'no kill'}){self._said()}")
        self.seconds = time.perf_counter() - began
        record = self.notes / "struck"
        return f"in {record.read_text(encoding='utf-8')}" if record.exists() else struck

    def _check(self, kill: Kill | None, code: int) -> None:
        """Raises what the training raised, unless that is what ``kill`` causes."""
        said: dict[str, Any] = {"error": f"exit code {code}", "traceback": self._said(), "kinds": []}
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # a kill may cut it
            said = json.loads((self.notes / "error.json").read_text(encoding="utf-8"))
        if kill is not None and (not said["kinds"] or set(said["kinds"]) & set(EXPECTED[kill.by])):
            return
        failure = RuntimeError(f"the training that is to be certified failed: {said['error']}")
        failure.add_note(said["traceback"])
        raise failure

    def _said(self) -> str:
        """The end of what the processes of this training printed."""
        file = self.notes / "said.txt"
        return "\n" + file.read_text(encoding="utf-8", errors="replace")[-4000:] if file.exists() else ""


def _context() -> Any:
    """A server that has everything loaded makes a process in a moment; where there is none, each loads it again."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@contextlib.contextmanager
def _leaks_expected() -> Iterator[None]:
    """A killed training leaves semaphores of its loader workers. Python's resource tracker, a process that the first
    start of another one begins, removes them, and would warn of them amid what the user reads."""
    name, before = "PYTHONWARNINGS", os.environ.get("PYTHONWARNINGS")
    os.environ[name] = ",".join(filter(None, [before, "ignore:resource_tracker:UserWarning"]))
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _end(process: Any) -> None:
    """Ends ``process`` and everything that it started and left behind, as a scheduler does with a job."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process.pid != os.getpgrp():
                os.killpg(process.pid, signal.SIGKILL)
    if process.is_alive():
        process.kill()
    process.join()


def _child(train: Train, folder: Path, notes: Path, kill: Kill | None) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # so that a signal to the group stays within this training
    said = os.open(notes / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    torch.set_num_threads(1)
    seed_everything(0)  # what the training itself does not seed would differ from process to process
    callbacks: list[Callback] = [Witness(notes)]
    if kill is not None and kill.point is not None:
        callbacks.append(Killer(kill, notes))
    try:
        (notes / "began").touch()
        returned = (load_function(train) if isinstance(train, str) else train)(folder, callbacks)
        write_end(notes, returned)
    except BaseException as error:
        kinds = [type(one).__name__ for one in _chain(error)]
        report = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc(), "kinds": kinds}
        (notes / "error.json").write_text(json.dumps(report), encoding="utf-8")
        sys.exit(1)  # the process that waits for this one reports the error


def _chain(error: BaseException | None) -> list[BaseException]:
    """``error`` and what it was raised from."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def load_function(place: str) -> Callable[[Path, list[Callback]], object]:
    """The function at ``"file.py:function"``."""
    file, _, name = place.rpartition(":")
    sys.path.insert(0, str(Path(file).resolve().parent))  # as Python does with a script, for what lies beside it
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise ValueError(f"{place!r} is not the place of a function: write file.py:function")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[Path, list[Callback]], object] | None = getattr(module, name, None)
    if function is None:
        raise ValueError(f"{file} has no function {name!r}")
    return function
