"""One save by several processes, as each of them does it at the same safe point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cadenza.checkpoint.writer import Writer


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
