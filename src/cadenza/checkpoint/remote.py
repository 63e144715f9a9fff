"""An object store, or anything else that fsspec can reach, with the operations of a disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import IO, Any

FLAT = {"s3", "s3a", "gs", "gcs", "memory", "az", "abfs", "abfss", "adl", "oss", "r2"}
"""Stores without folders: a name with slashes is enough."""
BLOCK = 16 * 2**20


class Remote:
    """Files in folders under a URL. A file that was written is looked at again: its size must be the expected one."""

    remote = True

    def __init__(self, url: str, filesystem: Any = None) -> None:
        self.url = url.rstrip("/")
        if filesystem is None:
            self.filesystem, self.root = _reach(self.url)
        else:
            self.filesystem, self.root = filesystem, filesystem._strip_protocol(self.url)
        protocol = self.filesystem.protocol
        self.flat = bool(FLAT & set((protocol,) if isinstance(protocol, str) else protocol))

    def __str__(self) -> str:
        return self.url

    def _path(self, folder: str, file: str) -> str:
        return f"{self.root}/{folder}/{file}"

    def folders(self) -> dict[str, set[str]]:
        """Every folder under the root, and the names of the files in it."""
        self.filesystem.invalidate_cache()
        found: dict[str, set[str]] = {}
        try:
            paths = self.filesystem.find(self.root)
        except FileNotFoundError:
            return {}
        root = self.filesystem._strip_protocol(self.root).rstrip("/") + "/"
        for path in paths:
            parts = path[len(root) :].split("/") if path.startswith(root) else []
            if len(parts) == 2:
                found.setdefault(parts[0], set()).add(parts[1])
        return found

    def begin(self, folder: str) -> None:
        """Makes a new folder, where the store has any."""
        if not self.flat:
            self.filesystem.makedirs(f"{self.root}/{folder}", exist_ok=False)

    def write(self, folder: str, file: str, pieces: Iterable[memoryview | bytes]) -> int:
        """Writes a new file, and asks the store how much of it has arrived; returns its size."""
        path, size = self._path(folder, file), 0
        with self.filesystem.open(path, "wb", block_size=BLOCK) as target:
            for piece in pieces:
                rest = memoryview(piece)
                size += len(rest)
                while len(rest):
                    count = target.write(rest)
                    rest = rest[len(rest) if count is None else count :]
        self.filesystem.invalidate_cache()
        arrived = self.filesystem.info(path)["size"]
        if arrived != size:
            raise OSError(f"{self.url} has stored {arrived} of {size} bytes of {folder}/{file}")
        return size

    def settle(self, folder: str) -> None:
        """A file is there when the store has said so: nothing to wait for."""

    def publish(self, folder: str, file: str, content: bytes) -> None:
        """Stores a small object, and reads it again. One that is not whole is no valid marker, so nobody takes it."""
        path = self._path(folder, file)
        self.filesystem.pipe_file(path, content)
        self.filesystem.invalidate_cache()
        if self.filesystem.cat_file(path) != content:
            raise OSError(f"{self.url} has not stored {folder}/{file} as it was written")

    def open(self, folder: str, file: str) -> IO[bytes]:
        opened: IO[bytes] = self.filesystem.open(self._path(folder, file), "rb", block_size=BLOCK)
        return opened

    def remove(self, folder: str, file: str) -> None:
        self.filesystem.rm_file(self._path(folder, file))

    def remove_folder(self, folder: str) -> None:
        if not self.flat:
            with contextlib.suppress(OSError, NotImplementedError):
                self.filesystem.rmdir(f"{self.root}/{folder}")

    def rename(self, folder: str, other: str) -> bool:
        """Stores of objects cannot rename: what is torn stays where it is, and is passed over."""
        return False


def _reach(url: str) -> tuple[Any, str]:
    try:
        import fsspec  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{url} needs fsspec: pip install 'cadenza[checkpoint]'") from error
    try:
        filesystem, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise ModuleNotFoundError(f"{url} needs a further package. {error}") from error
    return filesystem, root
