"""What runs in a process that ``launch(..., on="local")`` started. The work comes through standard input."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any


def main(path: str) -> int:
    """Calls what was sent, writes what it returned or raised to ``path``; the exit code says whether it failed."""
    pipe = sys.stdin.buffer
    size = int.from_bytes(pipe.read(8), "little")
    search, work = pickle.loads(pipe.read(size))
    sys.path[:] = search
    threading.Thread(target=_follow_parent, args=(pipe.fileno(),), daemon=True).start()
    found: dict[str, Any]
    try:
        found = {"result": call(work)}
    except BaseException as error:
        found = told(error)
    file = Path(path)
    file.with_suffix(".part").write_bytes(pickle.dumps(found))
    file.with_suffix(".part").replace(file)
    return int(found.get("code", 0))


def call(work: bytes) -> bytes:
    """Calls what was packed, together with the other processes; returns what it returned, packed."""
    import cloudpickle

    from cadenza.distributed.meeting import part, rest
    from cadenza.distributed.world import World

    fn, args = pickle.loads(work)
    World.detect().join()
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
    news = bool(getattr(error, "is_news", False))
    return {"error": packed, "text": text, "said": said, "when": time.time(), "news": news, "code": code or 1}


def _follow_parent(pipe: int) -> None:
    """Ends this process when the one that started it is gone: nobody waits for the result any more."""
    try:
        while os.read(pipe, 1):
            pass
    except OSError:
        return
    os._exit(1)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code) if code else sys.exit(0)
