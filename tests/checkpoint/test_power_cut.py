"""The power fails after any operation of a save, and any part of what was not synced is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cadenza.checkpoint import Shelf, Writer

from .power import Journal, Remains, after
from .states import small_state, value_of

pytestmark = pytest.mark.skipif(os.name == "nt", reason="folders cannot be synced there")


def write(writer: Writer, journal: Journal, value: float) -> None:
    writer.save(f"v{value:g}", small_state(value), {"monitor": "loss", "mode": "min", "value": value})
    journal.returned(value)


def writer_at(shelf: Shelf) -> Writer:
    return Writer(shelf, keep_last=1, keep_best=1, background=False, on_failure="raise")


def first_saves(shelf: Shelf, journal: Journal) -> None:
    """The folder is made; then the second is deleted after the third is there, since the first is the best."""
    writer = writer_at(shelf)
    for value in (1.0, 2.0, 3.0):
        write(writer, journal, value)


def after_a_kill(shelf: Shelf, journal: Journal) -> None:
    """A draft is set aside by the one who resumes, and removed later."""
    writer = writer_at(shelf)
    write(writer, journal, 1.0)
    shelf.store.write(shelf.draft("torn").folder, "state.json", [b"{}"])
    writer = writer_at(shelf)
    assert writer.recover() is not None
    for value in (2.0, 3.0):
        write(writer, journal, value)
        shelf.store.write(shelf.draft("torn").folder, "state.json", [b"{}"])
        assert writer.recover() is not None


def after_a_full_disk(shelf: Shelf, journal: Journal) -> None:
    """A draft is given up, and the next save is made in its place."""
    writer = writer_at(shelf)
    write(writer, journal, 1.0)
    draft = shelf.draft("v2")
    shelf.store.write(draft.folder, "model.safetensors", [b"half"])
    shelf.abandon(draft, OSError("full"))
    write(writer, journal, 3.0)


@pytest.mark.parametrize("scenario", [first_saves, after_a_kill, after_a_full_disk])
def test_a_committed_checkpoint_is_found(scenario: Callable[[Shelf, Journal], None], tmp_path: Path) -> None:
    journal = Journal()
    scenario(Shelf(tmp_path / "run" / "checkpoints", system=journal), journal)
    seen: dict[str, float | None] = {}
    cuts = 0
    for count in range(len(journal.calls) + 1):
        returned = max((value for number, value in journal.done.items() if number <= count), default=None)
        for left in after(journal.calls[:count], tmp_path, tmp_path / "run" / "checkpoints"):
            cuts += 1
            key = repr(sorted((name, sorted(files.items())) for name, files in left.items()))
            if key not in seen:
                seen[key] = newest(left)
            found = seen[key]
            assert found in {None, 1.0, 2.0, 3.0}, f"after {count} operations"
            if returned is not None:
                assert found is not None, f"after {count} operations nothing is left"
                assert found >= returned, f"after {count} operations {returned} is lost, which was saved"
    assert seen[key] == 3.0
    assert cuts > len(seen) > 20
    print(f"{len(journal.calls)} operations, {cuts} disks, {len(seen)} that differ")  # shown by pytest -s


def newest(left: dict[str, dict[str, bytes]]) -> float | None:
    """The value that a resume would take; a checkpoint that has a marker must be whole."""
    shelf = Shelf("unused")
    shelf.store = Remains(left)  # type: ignore[assignment]
    for name in shelf.names():
        value_of(shelf.read(name).state)
    saved = shelf.newest_valid()
    return None if saved is None else value_of(saved.state)
