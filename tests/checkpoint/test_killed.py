"""The one who saves is killed at every single operation. Afterwards a whole checkpoint is there: the old or the new."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from cadenza.checkpoint import Shelf, Writer

from ..processes import run
from .faults import FaultyFileSystem, FaultySystem, Fuse, Killed
from .states import small_state, value_of


def meta(value: float) -> dict[str, Any]:
    return {"monitor": "val/loss", "mode": "max", "value": value}


def prepared(shelf: Shelf) -> None:
    """Two checkpoints; with the third the first one has to go."""
    for value in (1.0, 2.0):
        shelf.write(f"v{value:g}", small_state(value), meta(value))


def save_third(shelf: Shelf) -> None:
    writer = Writer(shelf, keep_last=2, keep_best=1, background=False, on_failure="raise", retries=0)
    writer.save("v3", small_state(3.0), meta(3.0))


def on_disk(folder: Path) -> Shelf:
    return Shelf(folder, system=FaultySystem(Fuse()))


def check_after(shelf: Shelf, *, finished: bool = False) -> float:
    """What is there is whole, and one can go on from it. Returns the value of the newest."""
    names = list(shelf.metas())  # without a marker of which only a part was stored
    for name in names:
        value_of(shelf.read(name).state)
    saved = shelf.read("last")
    newest = value_of(saved.state)
    assert newest in (2.0, 3.0)
    assert saved.meta == meta(newest)
    if newest == 2.0:
        assert [name[7:] for name in names] == ["v1", "v2"], "something was deleted before its successor was committed"
    else:
        assert [name[7:] for name in names][-2:] == ["v2", "v3"]
    if finished:
        assert [name[7:] for name in names] == ["v2", "v3"]
    writer = Writer(shelf, keep_last=2, background=False, on_failure="raise", retries=0)
    recovered = writer.recover()
    assert recovered is not None
    assert value_of(recovered.state) == newest
    writer.save("v4", small_state(4.0), meta(4.0))
    assert value_of(shelf.read("last").state) == 4.0
    assert [name[7:] for name in shelf.metas()] == [f"v{newest:g}", "v4"]
    assert shelf.torn() == []
    return newest


def newest_after_each(attempt: Callable[[int], float | None]) -> list[float]:
    """The newest value after a kill at operation 1, 2, … until nothing is killed any more."""
    found = []
    for k in range(1, 1000):
        newest = attempt(k)
        if newest is None:
            break
        found.append(newest)
    assert found == sorted(found), "a committed checkpoint was lost again"
    assert set(found) == {2.0, 3.0}
    return found


@pytest.fixture
def base(tmp_path: Path) -> Path:
    prepared(Shelf(tmp_path / "base"))
    return tmp_path / "base"


@pytest.mark.parametrize("after", [False, True], ids=["before the operation is done", "after it"])
def test_on_a_disk(base: Path, after: bool) -> None:
    def attempt(k: int) -> float | None:
        folder = base.parent / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)
        fuse = Fuse(k, after=after)
        try:
            save_third(Shelf(folder, system=FaultySystem(fuse)))
        except Killed:
            return check_after(on_disk(folder))
        check_after(on_disk(folder), finished=True)
        return None

    assert len(newest_after_each(attempt)) > 25


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory", skip_instance_cache=True)
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


@pytest.mark.parametrize("after", [False, True], ids=["before the operation is done", "after it"])
@pytest.mark.parametrize("part", [1, 2], ids=["whole writes", "short writes"])
def test_on_an_object_store(memory: Any, after: bool, part: int) -> None:
    def attempt(k: int) -> float | None:
        memory.store.clear()
        prepared(Shelf("memory://run"))
        try:
            short = FaultyFileSystem(memory, Fuse(k, after=after), short=lambda count: max(1, count // part))
            save_third(Shelf("memory://run", filesystem=short))
        except Killed:
            return check_after(Shelf("memory://run"))
        check_after(Shelf("memory://run"), finished=True)
        return None

    assert len(newest_after_each(attempt)) > 15


SCRIPT = """
import os, shutil, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.checkpoint.faults import FaultySystem, Fuse
from tests.checkpoint.test_killed import save_third
from cadenza.checkpoint import Shelf

base = Path(sys.argv[1])
for k in range(1, 1000):
    folder = base.parent / f"exit{k}"
    shutil.copytree(base, folder)
    child = os.fork()
    if child == 0:
        save_third(Shelf(folder, system=FaultySystem(Fuse(k, act=lambda: os._exit(9)))))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="starts a process for each operation by fork")
def test_in_processes_that_really_end(base: Path) -> None:
    done = run(SCRIPT, base)
    assert done.returncode == 0, done.stderr
    folders = sorted(base.parent.glob("exit*"), key=lambda path: int(path.name[4:]))
    assert len(folders) > 25
    newest = [check_after(on_disk(folder), finished=folder is folders[-1]) for folder in folders]
    assert newest == sorted(newest)
    assert set(newest) == {2.0, 3.0}
