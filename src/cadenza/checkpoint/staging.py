"""A checkpoint that is being written. Until its marker is there, nobody takes it for one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from cadenza import __version__
from cadenza.checkpoint.format.manifest import MANIFEST, MARKER, File, Manifest, folder_of, marker_of
from cadenza.checkpoint.format.packing import Packed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import IO


class Store(Protocol):
    """Where files lie: ``Disk`` or ``Remote``."""

    remote: bool

    def folders(self) -> dict[str, set[str]]: ...
    def begin(self, folder: str) -> None: ...
    def write(self, folder: str, file: str, pieces: Iterable[memoryview | bytes]) -> int: ...
    def settle(self, folder: str) -> None: ...
    def publish(self, folder: str, file: str, content: bytes) -> None: ...
    def open(self, folder: str, file: str) -> IO[bytes]: ...
    def remove(self, folder: str, file: str) -> None: ...
    def remove_folder(self, folder: str) -> None: ...
    def rename(self, folder: str, other: str) -> bool: ...


class Draft:
    """The folder of a checkpoint before it is one. Write into it with ``add``, then ``commit`` once.

    Several processes can fill one draft, each with a part of its own. The first begins it and sends its ``number`` to
    the others, which join with ``shelf.draft(name, number)``; what their ``add`` returns goes into ``files`` of the
    first, and it commits.
    """

    def __init__(self, store: Store, number: int, name: str, *, begin: bool = True) -> None:
        self.store = store
        self.number = number
        self.name = name
        self.folder = folder_of(number, name)
        self.files: dict[str, File] = {}
        self.aliases: dict[str, str] = {}
        if begin:
            store.begin(self.folder)

    def add(self, packed: Packed, part: str = "") -> dict[str, File]:
        """Writes a state, as the named part if there are several; returns what was written."""
        written = {}
        for file, pieces in packed.files():
            digest = hashlib.sha256()
            name = f"{part}.{file}" if part else file
            size = self.store.write(self.folder, name, _passing(pieces, digest))
            written[name] = File(size, digest.hexdigest())
        self.files.update(written)
        self.aliases.update(packed.aliases if not part else {})
        return written

    def commit(self, meta: Mapping[str, Any]) -> Manifest:
        """Everything that was added becomes a checkpoint, at once and for good."""
        versions = {"cadenza": __version__, "torch": str(torch.__version__)}
        manifest = Manifest(self.name, self.number, dict(meta), self.files, self.aliases, versions)
        text = manifest.text()
        self.store.write(self.folder, MANIFEST, [text])
        self.store.settle(self.folder)
        self.store.publish(self.folder, MARKER, marker_of(text))
        return manifest


def _passing(pieces: Iterator[memoryview | bytes], digest: Any) -> Iterator[memoryview | bytes]:
    for piece in pieces:
        digest.update(piece)
        yield piece
