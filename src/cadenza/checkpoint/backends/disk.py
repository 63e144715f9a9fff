"""A folder on a disk, and what it takes for a file to be still there after the power failed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any


class Disk:
    """Files in folders under ``root``. ``system`` does the writing; it is ``os``, or what a test puts in its place."""

    remote = False

    def __init__(self, root: str | Path, system: Any = os) -> None:
        self.root = Path(root).absolute()  # a later change of the working directory does not move it
        self.system = system

    def __str__(self) -> str:
        return str(self.root)

    def folders(self) -> dict[str, set[str]]:
        """Every folder under the root, and the names of the files in it."""
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root) as entries:
            for entry in entries:
                if entry.is_dir():
                    with contextlib.suppress(FileNotFoundError):  # another process removes old ones
                        found[entry.name] = set(os.listdir(entry.path))
        return found

    def begin(self, folder: str) -> None:
        """Makes a new folder, which will still be there after a crash."""
        missing = [parent for parent in (self.root, *self.root.parents) if not parent.exists()]
        for parent in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self.system.mkdir(parent)
            self._sync_folder(parent.parent)
        self.system.mkdir(self.root / folder)
        self._sync_folder(self.root)

    def write(self, folder: str, file: str, pieces: Iterable[memoryview | bytes]) -> int:
        """Writes a new file and waits until it is on the disk; returns its size."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = self.system.open(self.root / folder / file, flags, 0o666)
        size = 0
        try:
            for piece in pieces:
                rest = memoryview(piece)
                size += len(rest)
                while len(rest):
                    rest = rest[self.system.write(descriptor, rest) :]
            self.system.fsync(descriptor)
        finally:
            self.system.close(descriptor)
        return size

    def settle(self, folder: str) -> None:
        """Waits until the names of the files in ``folder`` are on the disk."""
        self._sync_folder(self.root / folder)

    def publish(self, folder: str, file: str, content: bytes) -> None:
        """Makes a small file appear whole or not at all."""
        draft = f"{file}.draft"
        with contextlib.suppress(FileNotFoundError):
            self.system.unlink(self.root / folder / draft)
        self.write(folder, draft, [content])
        self.system.replace(self.root / folder / draft, self.root / folder / file)
        self._sync_folder(self.root / folder)

    def open(self, folder: str, file: str) -> IO[bytes]:
        """Opens a plain file that lies in the folder itself. A link is refused: it may lead anywhere."""
        path = self.root / folder / file
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise FileNotFoundError(f"{path} is no plain file")
        return open(path, "rb", buffering=0)

    def remove(self, folder: str, file: str) -> None:
        """Removes a file, for good once the folder is settled."""
        self.system.unlink(self.root / folder / file)

    def remove_folder(self, folder: str) -> None:
        self.system.rmdir(self.root / folder)

    def rename(self, folder: str, other: str) -> bool:
        """Gives a folder another name; answers whether this store can do that."""
        self.system.rename(self.root / folder, self.root / other)
        self._sync_folder(self.root)
        return True

    def _sync_folder(self, path: Path) -> None:
        if os.name == "nt":  # where folders cannot be opened, names are written through
            return
        descriptor = self.system.open(path, os.O_RDONLY)
        try:
            self.system.fsync(descriptor)
        finally:
            self.system.close(descriptor)
