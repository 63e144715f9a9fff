"""Reading a checkpoint: every byte is compared with its checksum before anything is handed out."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import IO, Any

import torch
from torch import Tensor

from cadenza.checkpoint.format.chunks import Chunk, Spread
from cadenza.checkpoint.format.layout import TYPES
from cadenza.checkpoint.format.manifest import FOLDER, MANIFEST, MARKER, File, Manifest, marker_of, parse
from cadenza.checkpoint.format.packing import JSON, unpack
from cadenza.checkpoint.format.tensor_file import PIECE, Into
from cadenza.checkpoint.problems import Damaged
from cadenza.checkpoint.staging import Store


def read_manifest(store: Store, folder: str) -> Manifest:
    """The manifest of ``folder``, if its marker vouches for it and it was written there."""
    try:
        with store.open(folder, MARKER) as file:
            marker = file.read(len(marker_of(b"")) + 1)
        with store.open(folder, MANIFEST) as file:
            text = _all(file)
    except FileNotFoundError as error:
        raise Damaged(folder, f"{MARKER} or {MANIFEST} is missing") from error
    manifest = parse(folder, text, marker)
    numbered = FOLDER.fullmatch(folder)
    if numbered is not None and int(numbered[1]) != manifest.number:  # else an old one would be taken for the newest
        raise Damaged(folder, f"it holds the files of {manifest.folder}: it was renamed, or they were copied into it")
    return manifest


def _all(file: IO[bytes]) -> bytes:
    pieces = []
    while piece := file.read(PIECE):
        pieces.append(piece)
    return b"".join(pieces)


class Checked:
    """Reads the files of one checkpoint and takes their checksums on the way; ``verify`` compares them."""

    def __init__(self, store: Store, manifest: Manifest, folder: str, part: str = "") -> None:
        self.store, self.manifest, self.folder = store, manifest, folder
        self.prefix = f"{part}." if part else ""
        self._open = contextlib.ExitStack()
        self._digests: dict[str, tuple[IO[bytes], Any]] = {}

    def __enter__(self) -> Checked:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def open(self, file: str) -> tuple[Into, int]:
        """How to read on in a file, and its size."""
        name = self.prefix + file
        expected = self._expected(name)
        try:
            opened = self._open.enter_context(self.store.open(self.folder, name))
        except FileNotFoundError as error:
            raise Damaged(self.folder, f"{name} is missing") from error
        digest = hashlib.sha256()
        self._digests[name] = opened, digest

        def read(into: memoryview) -> None:
            done = 0
            while done < len(into):
                count = opened.readinto(into[done:])  # type: ignore[attr-defined]
                if not count:
                    raise Damaged(self.folder, f"{name} is shorter than {expected.bytes} bytes")
                digest.update(into[done : done + count])
                done += count

        return read, expected.bytes

    def _expected(self, name: str) -> File:
        if name not in self.manifest.files:
            raise Damaged(self.folder, f"{MANIFEST} does not speak of {name}")
        return self.manifest.files[name]

    def whole(self, file: str) -> bytes:
        """The verified content of a file."""
        read, size = self.open(file)
        content = bytearray()
        for begin in range(0, size, PIECE):  # not all at once: a size in a manifest may be anything
            piece = bytearray(min(PIECE, size - begin))
            read(memoryview(piece))
            content += piece
        self.verify()
        return bytes(content)

    def verify(self) -> None:
        """Everything that was read is what was written, or this raises."""
        for name, (opened, digest) in self._digests.items():
            if digest.hexdigest() != self.manifest.files[name].sha256:
                raise Damaged(self.folder, f"{name} is not what was written: its checksum differs")
            if opened.read(1):
                raise Damaged(self.folder, f"{name} is longer than {self.manifest.files[name].bytes} bytes")


def read_state(store: Store, manifest: Manifest, folder: str, part: str = "", *, apart: bool = False) -> dict[str, Any]:
    """The state in ``folder``, verified. Tensors that lie in parts are put together, or with ``apart`` left apart: then
    a ``Spread`` stands for each, and the files of the parts are not looked at."""
    pending = Pending()
    with Checked(store, manifest, folder, part) as files:
        text = files.whole(JSON)
        try:
            state = unpack(text, files.open, Spread.of if apart else pending.make)
            pending.fill(lambda other: read_state(store, manifest, folder, other, apart=True))
        except Damaged:
            raise
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
            verify(store, manifest, folder)  # a wrong checksum explains more
            raise Damaged(folder, f"its files make no sense: {error}") from error
        files.verify()
    return state


def parts_of(manifest: Manifest) -> list[str]:
    """The names of the parts that several processes wrote."""
    return sorted({name.partition(".")[0] for name in manifest.files if name.count(".") > 1})


def verify(store: Store, manifest: Manifest, folder: str, parts: Collection[str] | None = None) -> None:
    """Compares every file in ``folder`` with its checksum, or those of some parts, without making a state of it."""
    with Checked(store, manifest, folder) as files:
        for name in manifest.files:
            if parts is not None and name.partition(".")[0] not in parts:
                continue
            read, size = files.open(name)
            buffer = memoryview(bytearray(min(size, PIECE)))
            for begin in range(0, size, PIECE):
                read(buffer[: min(PIECE, size - begin)])
        files.verify()


SHARDS = "shards"
"""Under this name the state of a part holds its chunks."""


class Pending:
    """Whole tensors for what was spread, made while a state is decoded and filled when all are known."""

    def __init__(self) -> None:
        self.tensors: list[tuple[Spread, Tensor]] = []

    def make(self, record: Mapping[str, Any]) -> Tensor:
        spread = Spread.of(record)
        tensor = torch.empty(spread.shape, dtype=TYPES[spread.dtype])
        self.tensors.append((spread, tensor))
        return tensor

    def fill(self, read: Callable[[str], dict[str, Any]]) -> None:
        """Reads each part once; ``read(part)`` answers with its state, verified."""
        wanted: dict[str, list[tuple[Spread, Chunk, Tensor]]] = {}
        for spread, tensor in self.tensors:
            for chunk in spread.chunks:
                wanted.setdefault(chunk.part, []).append((spread, chunk, tensor))
        for part, chunks in wanted.items():
            held = read(part)
            for spread, chunk, tensor in chunks:
                box(tensor, chunk.offsets, chunk.sizes).copy_(chunk_of(held, spread.name, chunk, part))


def chunk_of(held: Mapping[str, Any], name: str, chunk: Chunk, part: str) -> Tensor:
    """The values of ``chunk`` in the state of its part."""
    values = held.get(SHARDS, {}).get(name)
    if not isinstance(values, Tensor) or tuple(values.shape) != chunk.sizes:
        raise ValueError(f"{part} does not hold its chunk of {name}")
    return values


def box(tensor: Tensor, offsets: Iterable[int], sizes: Iterable[int]) -> Tensor:
    """The part of ``tensor`` that begins at ``offsets`` and is so large.

    >>> box(torch.arange(6).view(3, 2), (1, 0), (2, 1))
    tensor([[2],
            [4]])
    """
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor
