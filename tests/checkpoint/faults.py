"""Disks and stores that break: at the k-th operation, from it on, or by writing less than they were given."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
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


# A disk whose power is cut -------------------------------------------------------------------------------------------


class Node:
    """A file or a folder: what programs see now, and what survives when the power is cut."""

    def __init__(self, folder: bool) -> None:
        self.now: Any = {} if folder else b""
        self.durable: Any = {} if folder else b""
        self.folder = folder
        self.last: str | None = None

    def surviving(self, names: str) -> dict[str, Node]:
        """The names in this folder after the cut. "reordered": of those not synced, only the last change is kept."""
        if names != "reordered" or self.last is None:
            return self.now if names == "kept" else self.durable
        found = {name: node for name, node in self.durable.items() if name != self.last}
        return found | ({self.last: self.now[self.last]} if self.last in self.now else {})

    def sync(self) -> None:
        self.durable = dict(self.now) if self.folder else self.now
        self.last = None


class PowerCut(FaultySystem):
    """Beside doing everything, keeps account of what has reached the disk: only what was synced has."""

    def __init__(self, fuse: Fuse, root: Path) -> None:
        super().__init__(fuse)
        self.root, self.top = root, self._known(root)
        self.open_files: dict[int, Node] = {}
        for name in WRITING:
            setattr(self, name, self._both(name))

    def _known(self, path: Path) -> Node:
        node = Node(path.is_dir())
        node.now = {p.name: self._known(p) for p in path.iterdir()} if node.folder else path.read_bytes()
        node.sync()
        return node

    def _both(self, name: str) -> Callable[..., Any]:
        account, function = getattr(self, f"_{name}"), PERFORM[name]

        def both(*given: Any) -> Any:
            def operation() -> Any:
                done = function(*given)
                account(done, *given)
                return done

            return self.fuse.around(operation)

        return both

    def _at(self, path: Path) -> Node:
        node = self.top
        for part in Path(path).relative_to(self.root).parts:
            node = node.now[part]
        return node

    def _changed(self, path: Path) -> dict[str, Node]:
        parent = self._at(path.parent)
        parent.last = path.name
        names: dict[str, Node] = parent.now
        return names

    def _mkdir(self, _: None, path: Path) -> None:
        self._changed(path)[path.name] = Node(folder=True)

    def _unlink(self, _: None, path: Path) -> None:
        del self._changed(path)[path.name]

    _rmdir = _unlink

    def _replace(self, _: None, old: Path, new: Path) -> None:
        moved = self._changed(old).pop(old.name)
        self._changed(new)[new.name] = moved

    _rename = _replace

    def _open(self, descriptor: int, path: Path, flags: int, mode: int = 0) -> None:
        if flags & os.O_CREAT:
            self._changed(path)[path.name] = Node(folder=False)
        self.open_files[descriptor] = self._at(path)

    def _write(self, count: int, descriptor: int, data: memoryview) -> None:
        self.open_files[descriptor].now += bytes(data[:count])

    def _fsync(self, _: None, descriptor: int) -> None:
        self.open_files[descriptor].sync()

    def _close(self, _: None, descriptor: int) -> None:
        del self.open_files[descriptor]

    def after_the_cut(self, where: Path, *, names: str) -> Path:
        """A folder with what survives; ``names`` says whether unsynced names are "lost", "kept" or "reordered"."""
        self._put(self.top, where, names)
        return where

    def _put(self, node: Node, path: Path, names: str) -> None:
        if not node.folder:
            path.write_bytes(node.durable)
            return
        path.mkdir()
        for name, inner in node.surviving(names).items():
            self._put(inner, path / name, names)
