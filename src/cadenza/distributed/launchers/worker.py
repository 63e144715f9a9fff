"""What runs in a process that ``launch(..., on="local")`` started. The work comes through standard input."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cadenza.resume.signals import follow_launcher


def main(path: str, grace: float) -> int:
    """Calls what was sent, writes what it returned or raised to ``path``; the exit code says whether it failed."""
    pipe, file = sys.stdin.buffer, Path(path)
    size = int.from_bytes(pipe.read(8), "little")
    search, work = pickle.loads(pipe.read(size))
    sys.path[:] = search
    follow_launcher()
    threading.Thread(target=_follow_parent, args=(pipe.fileno(), grace), daemon=True).start()
    found: dict[str, Any]
    try:
        found = {"result": call(work, file.with_suffix(".begun").touch)}
    except BaseException as error:
        found = told(error)
    file.with_suffix(".part").write_bytes(pickle.dumps(found))
    file.with_suffix(".part").replace(file)
    return int(found.get("code", 0))


def call(work: bytes, begin: Callable[[], Any] = lambda: None) -> bytes:
    """Calls what was packed, together with the other processes; returns what it returned, packed. ``begin`` is called
    when they have met."""
    import cloudpickle

    from cadenza.distributed.failures.join import part, rest
    from cadenza.distributed.world import World

    _, fn, args = pickle.loads(work)
    World.detect().join()
    begin()
    try:
        result = bytes(cloudpickle.dumps(fn(*args)))
    except BaseException:
        rest()
        raise
    part()
    return result


def told(error: BaseException) -> dict[str, Any]:
    """The exception, and its traceback as text in case it cannot travel."""
    import cloudpickle

    text = "".join(traceback.format_exception(error))
    said = f"{type(error).__name__}: {error}"
    try:
        packed = cloudpickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        packed = cloudpickle.dumps(RuntimeError(said))
    code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    code = 130 if isinstance(error, KeyboardInterrupt) else code
    news = bool(getattr(error, "is_news", False))
    return {"error": packed, "text": text, "said": said, "when": time.time(), "news": news, "code": code or 1}


def _follow_parent(pipe: int, grace: float) -> None:
    """When the process that started this one is gone, warns this one by SIGTERM, so that a run with ``Checkpoint`` is
    saved, and ends it after ``grace`` seconds: nobody waits for the result any more."""
    try:
        while os.read(pipe, 1):
            pass
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1], float(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code) if code else sys.exit(0)
