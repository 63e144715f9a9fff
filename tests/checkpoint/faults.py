"""Disks and stores that break: at the k-th operation, from it on, or by writing less than they were given."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import fsspec

WRITING = ("open", "write", "fsync", "close", "mkdir", "unlink", "rmdir", "replace", "rename")
PERFORM = {name: getattr(os, name) for name in WRITING} | {"fsync": lambda descriptor: None}
"""What is done in their place: all but the sync, which these tests keep account of and need not wait for."""


class Killed(BaseException):
    """The process is gone. No ``except Exception`` sees it."""


class Fuse:
    """Counts operations, and does something about the k-th: before it is done, or after."""

    def __init__(self, at: int | None = None, act: Callable[[], None] | None = None, *, after: bool = False) -> None:
        self.count, self.at, self.after = 0, at, after
        self.act = act or self.kill
        self.dead = False

    def kill(self) -> None:
        self.dead = True
        raise Killed(f"at operation {self.at}")

    def around(self, operation: Callable[[], Any]) -> Any:
        if self.dead:  # a dead process does nothing more, not even in its ``finally``
            raise Killed("again")
        self.count += 1
        now = self.count == self.at
        if now and not self.after:
            self.act()
        try:
            return operation()
        finally:  # also after one that failed, such as removing what is not there
            if now and self.after:
                self.act()


class FaultySystem:
    """``os`` for a ``Disk``, with a fuse in every call that changes something. Half of a write may be done."""

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse

    def __getattr__(self, name: str) -> Callable[..., Any]:
        assert name in WRITING, f"a call that nobody counts: {name}"
        function = PERFORM[name]
        return lambda *given: self.fuse.around(lambda: function(*given))

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.fuse.at == self.fuse.count + 1 and not self.fuse.after:
            os.write(descriptor, data[: len(data) // 2])
        done: int = self.fuse.around(lambda: os.write(descriptor, data))
        return done


class FaultyFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Another file system, with a fuse in every operation."""

    protocol = "memory"
    cachable = False

    def __init__(self, inner: Any, fuse: Fuse, short: Callable[[int], int] | None = None, lossy: bool = False) -> None:
        super().__init__()
        self.inner, self.fuse = inner, fuse
        self.short = short or (lambda count: count)
        self.lossy = lossy

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = fsspec.get_filesystem_class("memory")._strip_protocol(path)
        return stripped

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        opened = self.fuse.around(lambda: self.inner.open(path, mode, **options))
        return FaultyFile(self, opened) if "w" in mode else opened

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        if self.fuse.at == self.fuse.count + 1 and not self.fuse.after:
            self.inner.pipe_file(path, value[: len(value) // 2])  # the worst store: half an object is seen
        self.fuse.around(lambda: self.inner.pipe_file(path, value))

    def cat_file(self, path: str, **options: Any) -> Any:
        return self.fuse.around(lambda: self.inner.cat_file(path))

    def info(self, path: str, **options: Any) -> Any:
        return self.fuse.around(lambda: self.inner.info(path))

    def find(self, path: str, **options: Any) -> Any:
        return self.fuse.around(lambda: self.inner.find(path))

    def rm_file(self, path: str) -> None:
        self.fuse.around(lambda: self.inner.rm_file(path))


class FaultyFile:
    """A file opened for writing. ``lossy``: it says that all was written, and keeps only a part."""

    def __init__(self, system: FaultyFileSystem, inner: Any) -> None:
        self.system, self.inner = system, inner

    def __enter__(self) -> FaultyFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.system.fuse.around(self.inner.close)

    def write(self, data: memoryview) -> int:
        fuse = self.system.fuse
        if fuse.at == fuse.count + 1 and not fuse.after:
            self.inner.write(data[: len(data) // 2])
        kept = data[: self.system.short(len(data))]
        done: int = fuse.around(lambda: self.inner.write(kept))
        return len(data) if self.system.lossy else done


class Gate(Fuse):
    """Lets operations pass only once it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()

    def around(self, operation: Callable[[], Any]) -> Any:
        assert self.opened.wait(60)
        return operation()
