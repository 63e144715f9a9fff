"""An object store, or anything else that fsspec can reach, with the operations of a disk."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable
from typing import IO, Any, TypeVar, cast

from cadenza.checkpoint.backends.watchdog import Tick, within

T = TypeVar("T")
FLAT = {"s3", "s3a", "gs", "gcs", "memory", "az", "abfs", "abfss", "adl", "oss", "r2"}
"""Stores without folders: a name with slashes is enough."""
BLOCK = 16 * 2**20
ANSWER = 15.0
"""Seconds in which a store must answer a small request: a list, a size, a marker."""
TRANSFER = 60.0
"""Seconds in which it must take or give a block."""


class Remote:
    """Files in folders under a URL. A file that was written is looked at again: its size must be the expected one.

    Every request has a time limit, whatever the package behind fsspec does: a store that is silent raises ``Silent``.
    """

    remote = True

    def __init__(self, url: str, filesystem: Any = None) -> None:
        self.url = url.rstrip("/")
        if filesystem is None:
            self.filesystem, self.root = self._asked(lambda: _reach(self.url))
        else:
            self.filesystem, self.root = filesystem, filesystem._strip_protocol(self.url)
        protocol = self.filesystem.protocol
        self.flat = bool(FLAT & set((protocol,) if isinstance(protocol, str) else protocol))

    def __str__(self) -> str:
        return self.url

    def _path(self, folder: str, file: str) -> str:
        return f"{self.root}/{folder}/{file}"

    def _asked(self, request: Callable[[], T]) -> T:
        """What the store answers to a small request."""
        return within(ANSWER, self.url, lambda tick: request())

    def folders(self) -> dict[str, set[str]]:
        """Every folder under the root, and the names of the files in it."""
        self.filesystem.invalidate_cache()
        found: dict[str, set[str]] = {}
        try:
            paths = self._asked(lambda: self.filesystem.find(self.root))
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
            self._asked(lambda: self.filesystem.makedirs(f"{self.root}/{folder}", exist_ok=False))

    def write(self, folder: str, file: str, pieces: Iterable[memoryview | bytes]) -> int:
        """Writes a new file, and asks the store how much of it has arrived; returns its size."""
        path = self._path(folder, file)
        size = within(TRANSFER, self.url, lambda tick: self._send(path, pieces, tick))
        self.filesystem.invalidate_cache()
        arrived = self._asked(lambda: self.filesystem.info(path)["size"])
        if arrived != size:
            raise OSError(f"{self.url} has stored {arrived} of {size} bytes of {folder}/{file}")
        return size

    def _send(self, path: str, pieces: Iterable[memoryview | bytes], tick: Tick) -> int:
        size = 0
        with self.filesystem.open(path, "wb", block_size=BLOCK) as target:
            for piece in pieces:
                rest = memoryview(piece)
                size += len(rest)
                while len(rest):
                    tick()
                    count = target.write(rest[:BLOCK])
                    rest = rest[min(len(rest), BLOCK) if count is None else count :]
            tick()
        return size

    def settle(self, folder: str) -> None:
        """A file is there when the store has said so: nothing to wait for."""

    def publish(self, folder: str, file: str, content: bytes) -> None:
        """Stores a small object, and reads it again. One that is not whole is no valid marker, so nobody takes it."""
        path = self._path(folder, file)
        self._asked(lambda: self.filesystem.pipe_file(path, content))
        self.filesystem.invalidate_cache()
        if self._asked(lambda: self.filesystem.cat_file(path)) != content:
            raise OSError(f"{self.url} has not stored {folder}/{file} as it was written")

    def open(self, folder: str, file: str) -> IO[bytes]:
        path = self._path(folder, file)
        opened = self._asked(lambda: self.filesystem.open(path, "rb", block_size=BLOCK))
        return cast(IO[bytes], _Opened(opened, self.url))

    def remove(self, folder: str, file: str) -> None:
        self._asked(lambda: self.filesystem.rm_file(self._path(folder, file)))

    def remove_folder(self, folder: str) -> None:
        if not self.flat:
            with contextlib.suppress(OSError, NotImplementedError):
                self._asked(lambda: self.filesystem.rmdir(f"{self.root}/{folder}"))

    def rename(self, folder: str, other: str) -> bool:
        """Stores of objects cannot rename: what is torn stays where it is, and is passed over."""
        return False


class _Opened(io.RawIOBase):
    """A file that is read. A block that does not come in time raises ``Silent``."""

    def __init__(self, file: Any, url: str) -> None:
        self._file, self._url = file, url

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        part = memoryview(into)[:BLOCK]
        return within(TRANSFER, self._url, lambda tick: int(self._file.readinto(part)))

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _reach(url: str) -> tuple[Any, str]:
    try:
        import fsspec  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{url} needs fsspec: pip install 'cadenza[checkpoint]'") from error
    try:
        filesystem, root = fsspec.core.url_to_fs(url, **_options(url, fsspec.config.conf))
    except ImportError as error:
        raise ModuleNotFoundError(f"{url} needs a further package. {error}") from error
    return filesystem, root


def _options(url: str, configured: dict[str, Any]) -> dict[str, Any]:
    """How a store is reached, where its defaults do not do. botocore's attempts would multiply with those of s3fs and
    with ours to minutes, and their pauses draw from Python's generator, which belongs to the training: a resumed run
    would differ. What the user has configured for fsspec counts more."""
    protocol = url.partition("://")[0]
    if protocol not in ("s3", "s3a"):
        return {}
    given = dict(configured.get(protocol, {}).get("config_kwargs", {}))
    return {"config_kwargs": {"retries": {"max_attempts": 0}, **given}}
