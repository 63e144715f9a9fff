"""Which process a lock belongs to, and whether that process is still alive."""

from __future__ import annotations

import json
import os
import platform
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Owner:
    """A process that holds a lock. Neither the name of a host nor the number of a process is enough to know it: two
    containers may both be process 1 on the host "trainer", and numbers are used again."""

    token: str
    """Other for each lock that is taken."""
    boot: str
    """The kernel: the same in all containers on a machine, another one after each boot."""
    space: str
    """The namespace in which ``pid`` counts."""
    pid: int
    began: str
    """When the process was started, as the kernel counts."""
    host: str
    """For messages alone."""

    @classmethod
    def here(cls) -> Owner:
        """This process, for a new lock.

        >>> Owner.here().is_dead()
        False
        """
        pid, boot = os.getpid(), _boot()
        token = f"{boot}-{_space()}-{pid}-{time.monotonic_ns()}"
        return cls(token, boot, _space(), pid, _began(pid) or "", platform.node())

    @classmethod
    def parse(cls, text: bytes) -> Owner | None:
        """Who is named in a lock file; None if nobody is.

        >>> Owner.parse(b""), Owner.parse(b"{}")
        (None, None)
        """
        try:
            said = json.loads(text)
            return cls(**{name: kind(said[name]) for name, kind in _FIELDS.items()})
        except (ValueError, KeyError, TypeError):
            return None

    def text(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @property
    def is_of_this_kernel(self) -> bool:
        return self.boot == _boot()

    def is_dead(self) -> bool | None:
        """Whether the process has ended; None if that cannot be known from here."""
        if not self.is_of_this_kernel or self.space != _space():
            return None
        if not process_exists(self.pid):
            return True
        began = _began(self.pid)
        return began is not None and began != self.began

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


_FIELDS: dict[str, Any] = {"token": str, "boot": str, "space": str, "pid": int, "began": str, "host": str}


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"{platform.node()}-{uuid.getnode():x}"


def _space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _began(pid: int) -> str | None:
    """When the process was started; "" if it has ended and only its parent has not noticed; None if not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def process_exists(pid: int) -> bool:
    """Whether a process of that number exists on this machine."""
    if os.name == "nt":
        import ctypes

        kernel: Any = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
        handle = kernel.OpenProcess(0x1000, False, pid)  # only to ask
        if handle:
            kernel.CloseHandle(handle)
        return bool(handle)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
