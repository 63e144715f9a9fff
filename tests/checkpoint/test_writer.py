"""Saving in the background: when the caller waits, what happens when a store fails, and how it is said."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from cadenza.checkpoint import NotState, SaveFailed, Shelf, Writer

from .faults import FaultyFileSystem, FaultySystem, Fuse, Gate, Killed
from .states import small_state, value_of


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory", skip_instance_cache=True)
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


def faulty(memory: Any, fuse: Fuse, **options: Any) -> Shelf:
    return Shelf("memory://run", filesystem=FaultyFileSystem(memory, fuse, **options))


class Down(Fuse):
    """A store that fails from operation ``first`` on, ``times`` times."""

    def __init__(self, first: int = 1, times: int = 10**9) -> None:
        super().__init__()
        self.failing = range(first, first + times)

    def around(self, operation: Any) -> Any:
        self.count += 1
        if self.count in self.failing:
            raise ConnectionError("the store does not answer")
        return operation()


# In the background ---------------------------------------------------------------------------------------------------


def test_save_returns_while_the_store_is_slow_and_training_may_change_the_weights(memory: Any) -> None:
    gate = Gate()
    writer = Writer(faulty(memory, gate))
    state = small_state(1.0)
    writer.save("one", state)
    assert writer.busy
    assert writer.poll() == []
    for tensor in state["model"].values():
        tensor.fill_(9.0)
    state["clock"]["steps"] = 9
    gate.opened.set()
    (outcome,) = writer.close()
    assert (outcome.asked, outcome.name, outcome.problem) == ("one", "000001-one", None)
    assert not writer.busy
    assert value_of(writer.shelf.read("last").state) == 1.0


def test_a_second_save_waits_for_the_first(memory: Any) -> None:
    gate = Gate()
    writer = Writer(faulty(memory, gate))
    writer.save("one", small_state(1.0))
    second = threading.Thread(target=writer.save, args=("two", small_state(2.0)))
    second.start()
    second.join(0.05)
    assert second.is_alive()
    gate.opened.set()
    second.join()
    assert [outcome.name for outcome in writer.close()] == ["000001-one", "000002-two"]
    assert [value_of(writer.shelf.read(name).state) for name in writer.shelf.names()] == [1.0, 2.0]


def test_what_cannot_be_saved_is_said_at_once(tmp_path: Path) -> None:
    writer = Writer(Shelf(tmp_path))
    with pytest.raises(NotState, match=r"callbacks\.mine is a set"):
        writer.save("one", {"callbacks": {"mine": {1, 2}}})
    with pytest.raises(ValueError, match=r"a checkpoint cannot be called 'a/b': .* as in 'a_b'"):
        writer.save("a/b", small_state(1.0))
    with pytest.raises(NotState, match=r"meta\.value is a tensor.*use \.item\(\)"):
        writer.save("one", small_state(1.0), {"value": torch.tensor(0.5)})
    writer.save("one", small_state(1.0))
    assert len(writer.close()) == 1


def test_old_ones_are_deleted_after_each_commit(tmp_path: Path) -> None:
    writer = Writer(Shelf(tmp_path), keep_last=1, keep_best=1)
    for value, loss in ((1.0, 0.5), (2.0, 0.1), (3.0, 0.3), (4.0, 0.2)):
        writer.save(f"v{value:g}", small_state(value), {"monitor": "val/loss", "mode": "min", "value": loss})
    deleted = [outcome.deleted for outcome in writer.close()]
    assert deleted == [(), ("000001-v1",), (), ("000003-v3",)]
    assert writer.shelf.names() == ["000002-v2", "000004-v4"]
    assert value_of(writer.shelf.read("best").state) == 2.0


def test_steady_saving_allocates_nothing(tmp_path: Path) -> None:
    writer = Writer(Shelf(tmp_path), keep_last=1)
    state = {"model": {"weight": torch.zeros(1000)}}
    places = set()
    for step in range(3):
        state["model"]["weight"].fill_(step)
        writer.save(f"step={step}", state)
        writer.wait()
        places.add(writer._snapshot._memory.data_ptr())
        assert writer.shelf.read("last").state["model"]["weight"][7] == step
    assert len(places) == 1


def test_the_time_of_a_save_is_estimated_from_those_before(tmp_path: Path) -> None:
    writer = Writer(Shelf(tmp_path))
    assert writer.estimate() is None
    writer.save("one", {"model": {"weight": torch.zeros(1000)}})
    (outcome,) = writer.wait()
    assert outcome.size == 4000
    once = writer.estimate()
    assert once == pytest.approx(outcome.copying + outcome.writing)
    assert writer.estimate(8000) == pytest.approx(2 * once)


def test_an_estimate_counts_the_save_that_is_waited_for(memory: Any) -> None:
    gate = Gate()
    writer = Writer(faulty(memory, gate))
    writer.speed.measured(92, 1000.0)
    writer.save("one", small_state(1.0))
    estimate = writer.estimate()
    assert estimate is not None
    assert estimate > 1500.0
    gate.opened.set()
    writer.close()


# When something fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(1, 22))
def test_a_store_that_fails_for_a_while_is_asked_again(memory: Any, first: int, tmp_path: Path) -> None:
    shelf = faulty(memory, Down(first, times=2))
    writer = Writer(shelf, keep_last=2, retries=3, backoff=0.0, spill=tmp_path / "spill")
    for value in (1.0, 2.0):
        writer.save(f"v{value:g}", small_state(value))
    assert all(outcome.problem is None for outcome in writer.close())
    assert writer.problems == []
    assert value_of(Shelf("memory://run").read("last").state) == 2.0
    assert not (tmp_path / "spill").exists()


def test_if_it_stays_down_the_checkpoint_stays_here(memory: Any, tmp_path: Path, caplog: Any) -> None:
    fuse = Down(first=10**9)
    shelf = faulty(memory, fuse)
    writer = Writer(shelf, keep_last=2, retries=2, backoff=0.0, spill=tmp_path / "spill", on_failure="raise")
    writer.save("v1", small_state(1.0))
    writer.wait()
    fuse.failing = range(fuse.count + 1, 10**9)
    before = fuse.count
    with caplog.at_level(logging.WARNING, "cadenza"):
        writer.save("v2", small_state(2.0))
        writer.save("v3", small_state(3.0))
        outcomes = writer.close()
    assert fuse.count == before + 3 + 1, "three attempts for v2, none for v3, and one at the end"
    assert [outcome.name for outcome in outcomes] == ["000002-v2", "000003-v3"]
    assert len(writer.problems) == 2
    assert "v3 could not be stored in memory://run: ConnectionError: the store does not" in writer.problems[1]
    assert f"It is in {tmp_path / 'spill'}" in writer.problems[1]
    assert writer.problems[1] in caplog.text
    fuse.failing = range(0)
    recovered = Writer(shelf, spill=tmp_path / "spill").recover()
    assert recovered is not None
    assert value_of(recovered.state) == 3.0
    writer = Writer(shelf, spill=tmp_path / "spill")
    writer.save("v4", small_state(4.0))
    assert writer.close()[0].name == "000004-v4", "numbers go on, so that the newest is known"
    recovered = Writer(shelf, spill=tmp_path / "spill").recover()
    assert recovered is not None
    assert value_of(recovered.state) == 4.0


class FullDisk(FaultySystem):
    """Writes fail as on a full disk while ``full``."""

    def __init__(self) -> None:
        super().__init__(Fuse())
        self.full = False

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.full:
            os.write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, data)


@pytest.mark.parametrize("on_failure", ["warn", "raise"])
def test_a_full_disk_leaves_the_last_good_one(tmp_path: Path, on_failure: str) -> None:
    system = FullDisk()
    writer = Writer(Shelf(tmp_path, system=system), keep_last=1, on_failure=on_failure)
    writer.save("v1", small_state(1.0))
    writer.wait()
    system.full = True
    writer.save("v2", small_state(2.0))
    if on_failure == "raise":
        with pytest.raises(SaveFailed, match=r"v2 could not be stored in .*No space left.*Those before it are as"):
            writer.wait()
    else:
        (outcome,) = writer.wait()
        assert outcome.name is None
        assert outcome.problem is not None
        assert "No space left" in outcome.problem
    assert "No space left" in writer.problems[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001-v1"], "a draft takes up room"
    assert value_of(writer.shelf.read("last").state) == 1.0
    system.full = False
    writer.save("v3", small_state(3.0))
    writer.close()
    assert value_of(writer.shelf.read("last").state) == 3.0


def test_a_failure_surfaces_at_the_next_save_too(tmp_path: Path) -> None:
    system = FullDisk()
    system.full = True
    writer = Writer(Shelf(tmp_path, system=system), on_failure="raise")
    writer.save("v1", small_state(1.0))
    with pytest.raises(SaveFailed):
        writer.save("v2", small_state(2.0))


def test_what_kills_the_thread_is_raised_where_somebody_asks(tmp_path: Path) -> None:
    writer = Writer(Shelf(tmp_path, system=FaultySystem(Fuse(5))))
    writer.save("v1", small_state(1.0))
    with pytest.raises(Killed):
        writer.close()


def test_short_writes_are_continued(memory: Any) -> None:
    shelf = faulty(memory, Fuse(), short=lambda count: max(1, count // 3))
    shelf.write("v1", small_state(1.0))
    assert value_of(Shelf("memory://run").read("last").state) == 1.0


def test_short_writes_on_a_disk_are_continued(tmp_path: Path) -> None:
    class Short(FaultySystem):
        def write(self, descriptor: int, data: memoryview) -> int:
            return os.write(descriptor, data[: max(1, len(data) // 3)])

    Shelf(tmp_path, system=Short(Fuse())).write("v1", small_state(1.0))
    assert value_of(Shelf(tmp_path).read("last").state) == 1.0


def test_a_store_that_loses_what_it_was_given_commits_nothing(memory: Any, tmp_path: Path) -> None:
    Shelf("memory://run").write("v1", small_state(1.0))
    shelf = faulty(memory, Fuse(), short=lambda count: count - 1, lossy=True)
    writer = Writer(shelf, retries=1, backoff=0.0, spill=tmp_path)
    writer.save("v2", small_state(2.0))
    (outcome,) = writer.close()
    assert "has stored" in (outcome.problem or "")
    assert value_of(Shelf("memory://run").read("last").state) == 1.0
    assert value_of(Shelf(tmp_path).read("last").state) == 2.0


def test_old_ones_that_cannot_be_deleted_are_no_failure(memory: Any, tmp_path: Path, caplog: Any) -> None:
    class Undeletable(FaultyFileSystem):
        def rm_file(self, path: str) -> None:
            raise PermissionError("not yours")

    shelf = Shelf("memory://run", filesystem=Undeletable(memory, Fuse()))
    writer = Writer(shelf, keep_last=1, spill=tmp_path, on_failure="raise")
    for value in (1.0, 2.0):
        writer.save(f"v{value:g}", small_state(value))
    assert all(outcome.problem is None for outcome in writer.close())
    assert "could not be deleted: not yours" in caplog.text
    assert value_of(shelf.read("last").state) == 2.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_failure": "ignore"}, 'on_failure is "warn" or "raise"'),
        ({"keep_last": 0}, "keep_last is at least 1"),
        ({"keep_best": -1}, "keep_best is a whole number"),
        ({"retries": -1}, "retries is a whole number"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        Writer(Shelf(tmp_path), **options)
