"""A checkpoint that several processes write: each stores its part, and rank 0 commits when all of them have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from cadenza.checkpoint.format.manifest import File
from cadenza.checkpoint.format.packing import Packed
from cadenza.checkpoint.staging import Draft
from cadenza.checkpoint.store import Shelf

if TYPE_CHECKING:
    from cadenza.checkpoint.writer import Writer


class Crew(Protocol):
    """How the processes that save together hear of each other, also from other threads than the main one."""

    @property
    def rank(self) -> int: ...
    def tell_written(self, number: int, report: dict[str, Any]) -> None: ...
    def hear_written(self, number: int) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class Joint:
    """What one process does in such a save. ``tree`` is what rank 0 stores for all, None elsewhere."""

    draft: Draft
    crew: Crew
    tree: Packed | None
    shard: Packed

    @property
    def size(self) -> int:
        return self.shard.size + (self.tree.size if self.tree is not None else 0)

    def add(self) -> dict[str, File]:
        """Writes what this process has to write."""
        written = self.draft.add(self.shard, part_of(self.crew.rank))
        return written if self.tree is None else {**written, **self.draft.add(self.tree)}

    def report(self, files: Mapping[str, File]) -> None:
        """Tells rank 0 what was written here."""
        said = {name: [file.bytes, file.sha256] for name, file in files.items()}
        self.crew.tell_written(self.draft.number, {"files": said})

    def report_failure(self, problem: str) -> None:
        self.crew.tell_written(self.draft.number, {"problem": problem})

    def commit(self, shelf: Shelf, meta: Mapping[str, Any], trying: Callable[[Callable[[], str]], str]) -> str:
        """On rank 0: waits for the parts of the others and commits; returns the name of the folder."""
        for report in self.crew.hear_written(self.draft.number):
            if "problem" in report:
                raise OSError(report["problem"])
            self.draft.files.update({name: File(*said) for name, said in report["files"].items()})
        return trying(lambda: shelf.commit(self.draft, meta))


def part_of(rank: int) -> str:
    """What the part of a process is called.

    >>> part_of(3)
    'shard-3'
    """
    return f"shard-{rank}"


def save_together(
    crew: Any,
    from_main: Callable[[Any], Any],
    state: dict[str, Any],
    noted: tuple[str, dict[str, Any]],
    writer: Writer | None,
    helper: Callable[[str], Writer],
) -> None:
    """Each process stores its part of what is spread over them; rank 0, which has the ``writer``, the rest, and commits
    when all have. ``helper(place)`` gives the writer of another process, ``from_main`` what rank 0 says."""
    name, meta = noted
    draft = None
    if writer is not None:
        crew.refuse_if_unreached()
        draft = writer.begin_together(name)
    begun = from_main(draft and (str(draft.store), draft.name, draft.number))
    if begun is None:  # it failed, and rank 0 has told of it
        return
    tree, shard = crew.apart(state)
    if writer is not None and draft is not None:
        writer.save_together(draft, crew, tree, shard, meta)
        return
    other = helper(begun[0])
    other.poll()  # rank 0 tells of it
    other.save_together(other.shelf.draft(*begun[1:]), crew, None, shard, meta)
