"""Where a run stands, in a small file that is replaced as a whole."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from cadenza.foundation.locking import is_locked, process_exists
from cadenza.foundation.whole_files import write_whole

NAME = "status.json"
STATES = ("running", "finished", "failed", "interrupted", "preempted", "killed", "unreadable")


def write_status(folder: Path, state: str, **more: Any) -> None:
    """Replaces the status of ``folder``."""
    content = {"state": state, "pid": os.getpid(), "host": platform.node(), "changed": now(), **more}
    write_whole(folder / NAME, json.dumps(content, indent=1, ensure_ascii=False).encode())


def read_status(folder: Path) -> dict[str, Any]:
    """The status of ``folder``. A run that is said to be running and whose process is gone was killed."""
    try:
        status = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"state": "unreadable"}
    if not isinstance(status, dict) or status.get("state") not in STATES:
        return {"state": "unreadable"}
    if status["state"] == "running" and not is_alive(folder, status):
        status["state"] = "killed"
    return status


def is_alive(folder: Path, status: dict[str, Any]) -> bool:
    """Whether the run still goes on: its lock is held, or where that cannot be asked, its process exists."""
    locked = is_locked(folder)
    if locked is not None:
        return locked
    if status.get("host") != platform.node():
        return True  # on another machine, and nothing says that it ended
    return process_exists(int(status.get("pid", 0)))


def state_of(error: BaseException | None) -> str:
    """The state in which a run ended that raised ``error``.

    >>> state_of(None), state_of(KeyboardInterrupt()), state_of(ValueError())
    ('finished', 'interrupted', 'failed')
    """
    if error is None:
        return "finished"
    names = {cls.__name__ for cls in type(error).__mro__}
    if "Preempted" in names:
        return "preempted"
    return "interrupted" if "KeyboardInterrupt" in names else "failed"


def now() -> str:
    """The time as it is written into files: UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
