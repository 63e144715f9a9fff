"""What may be on a disk after the power was cut, worked out from the operations of a save.

A ``Journal`` is an ``os`` for a ``Disk``: it does what it is asked, and notes it. ``after(calls, …)`` yields every disk
that may be left if the power fails after these calls, by the promises of POSIX alone:

- the data of a file are there for sure only after an fsync of the file; else they are gone, or some of them are there
- names that were made, moved or removed in a folder are so for sure only after an fsync of the folder; until then any
  of these changes may be on the disk, in any combination
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .faults import PERFORM, WRITING

Change = tuple[tuple[str, "Node | None"], ...]
"""What happens to names at once: those that are made, and with None those that go."""


class Node:
    """A file or a folder: what has surely reached the disk, and what may have."""

    def __init__(self, folder: bool) -> None:
        self.folder = folder
        self.names: dict[str, Node] = {}
        self.changes: list[Change] = []
        self.data, self.synced = b"", b""

    @property
    def now(self) -> dict[str, Node]:
        """What programs see."""
        return applied(self.names, self.changes)

    def sync(self) -> None:
        self.names, self.changes = self.now, []
        self.synced = self.data


def applied(names: dict[str, Node], changes: Any) -> dict[str, Node]:
    found = dict(names)
    for name, node in itertools.chain.from_iterable(changes):
        found.pop(name, None)
        if node is not None:
            found[name] = node
    return found


class Journal:
    """``os``, and a note of every call that changes something."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.paths: dict[int, Path] = {}
        self.done: dict[int, float] = {}
        """For the number of calls after which a save had returned, its value."""

    def __getattr__(self, name: str) -> Any:
        assert name in WRITING, f"a call that nobody notes: {name}"

        def call(*given: Any) -> Any:
            result = PERFORM[name](*given)
            self._note(name, result, *given)
            return result

        return call

    def _note(self, name: str, result: Any, *given: Any) -> None:
        if name == "open":
            self.paths[result] = Path(given[0])
            if given[1] & os.O_CREAT:
                self.calls.append(("create", Path(given[0])))
        elif name == "write":
            self.calls.append(("write", self.paths[given[0]], bytes(given[1][:result])))
        elif name == "fsync":
            self.calls.append(("fsync", self.paths[given[0]]))
        elif name != "close":
            self.calls.append(("rename" if name == "replace" else name, *map(Path, given)))

    def returned(self, value: float) -> None:
        """A save of ``value`` has returned: from here on it must be there."""
        self.done[len(self.calls)] = value


def tree_after(calls: list[tuple[Any, ...]], root: Path) -> Node:
    """The disk after these calls; ``root`` was there before and is empty."""
    top = Node(folder=True)

    def at(path: Path) -> Node:
        node = top
        for part in path.relative_to(root).parts:
            node = node.now[part]
        return node

    for name, path, *more in calls:
        if name == "write":
            at(path).data += more[0]
        elif name == "fsync":
            at(path).sync()
        elif name == "rename":
            at(path.parent).changes.append(((more[0].name, at(path)), (path.name, None)))
        else:
            made = {"create": Node(folder=False), "mkdir": Node(folder=True)}.get(name)
            at(path.parent).changes.append(((path.name, made),))
    return top


def after(calls: list[tuple[Any, ...]], root: Path, shelf: Path) -> Iterator[dict[str, dict[str, bytes]]]:
    """Every disk that a power cut may leave: the folders in ``shelf``, and the files in each."""
    for names in folders_of(tree_after(calls, root), shelf.relative_to(root).parts):
        choices = [list(files_of(node)) for node in names.values()]
        for chosen in itertools.product(*choices):
            yield dict(zip(names, chosen, strict=True))


def folders_of(top: Node, way: tuple[str, ...]) -> Iterator[dict[str, Node]]:
    """The folders at the end of ``way``, in every combination of what may have become of the names on it."""
    for names in survivors(top):
        if not way:
            yield {name: node for name, node in names.items() if node.folder}
        elif way[0] in names:
            yield from folders_of(names[way[0]], way[1:])
        else:
            yield {}


def files_of(folder: Node) -> Iterator[dict[str, bytes]]:
    for names in survivors(folder):
        contents = [contents_of(node) for node in names.values()]
        for chosen in itertools.product(*contents):
            yield dict(zip(names, chosen, strict=True))


def survivors(folder: Node) -> Iterator[dict[str, Node]]:
    for some in itertools.product((False, True), repeat=len(folder.changes)):
        yield applied(folder.names, itertools.compress(folder.changes, some))


def contents_of(file: Node) -> list[bytes]:
    """Lost, half there, zeros of the right length, or all of it."""
    new = file.data[len(file.synced) :]
    return list(dict.fromkeys(file.synced + kept for kept in (b"", new[: len(new) // 2], bytes(len(new)), new)))


class Remains:
    """A store to read from, with what is left."""

    remote = False

    def __init__(self, folders: dict[str, dict[str, bytes]]) -> None:
        self.left = folders

    def __str__(self) -> str:
        return "the disk after the cut"

    def folders(self) -> dict[str, set[str]]:
        return {name: set(files) for name, files in self.left.items()}

    def open(self, folder: str, file: str) -> IO[bytes]:
        if file not in self.left.get(folder, ()):
            raise FileNotFoundError(f"{folder}/{file}")
        return io.BytesIO(self.left[folder][file])
