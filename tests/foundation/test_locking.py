"""The lock of a folder: who has it, when it is free, and when it is taken over."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cadenza.foundation.locking import FolderLock, FolderLocked, folder, is_locked
from cadenza.foundation.locking.owner import Owner
from cadenza.foundation.locking.system import lock_file

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="its processes are made by fork")


def lock(place: Path) -> FolderLock:
    return FolderLock(place, "wait")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "PATIENCE", 0.2)


def in_child(act: Callable[[], None]) -> int:
    """The number of a process that does ``act`` and kills itself with SIGKILL."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return child


def leave(place: Path, *, age: float = 0.0, **changed: object) -> None:
    """A lock file that a process of this machine wrote, or another one by what is changed."""
    (place / ".lock").write_bytes(dataclasses.replace(Owner.here(), **changed).text())  # type: ignore[arg-type]
    seen = (place / ".lock").stat().st_mtime - age
    os.utime(place / ".lock", (seen, seen))


# On one machine ------------------------------------------------------------------------------------------------------


def test_a_second_one_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    first = lock(tmp_path / "new").acquire()
    assert is_locked(tmp_path / "new")
    with pytest.raises(FolderLocked, match=rf"another run is writing into .* \(process {os.getpid()} on .*\); wait"):
        lock(tmp_path / "new").acquire()
    first.check()
    first.release()
    assert is_locked(tmp_path / "new") is False
    assert list((tmp_path / "new").iterdir()) == [], "nothing is left"
    second = lock(tmp_path / "new").acquire()
    assert second.is_held
    second.release()


def test_one_that_was_killed_is_followed_at_once(tmp_path: Path) -> None:
    for _ in range(5):
        in_child(lambda: lock(tmp_path).acquire() and None)
        assert (tmp_path / ".lock").exists()
        assert is_locked(tmp_path) is False
        lock(tmp_path).acquire().release()


def test_a_worker_that_outlives_its_parent_does_not_hold_the_lock(tmp_path: Path) -> None:
    """As the workers of a loader do after a kill, for some seconds."""
    told = tmp_path / "worker"

    def work() -> None:
        held = lock(tmp_path).acquire()
        worker = os.fork()
        if worker == 0:
            time.sleep(60)
        assert held.is_held
        told.write_text(str(worker))

    in_child(work)
    try:
        lock(tmp_path).acquire().release()
    finally:
        os.kill(int(told.read_text()), signal.SIGKILL)


def test_a_lock_that_something_else_still_holds_for_a_dead_owner_is_replaced(tmp_path: Path) -> None:
    """A process that was forked without Python's knowledge, or a server of files that missed the end."""
    leave(tmp_path, pid=in_child(lambda: None))
    holding = os.open(tmp_path / ".lock", os.O_RDWR)
    assert lock_file(holding)
    taken = lock(tmp_path).acquire()
    assert taken.is_held
    with pytest.raises(FolderLocked):
        lock(tmp_path).acquire()
    os.close(holding)
    taken.release()


def test_the_number_of_a_process_may_have_been_used_again(tmp_path: Path) -> None:
    leave(tmp_path, began="1")
    holding = os.open(tmp_path / ".lock", os.O_RDWR)
    lock_file(holding)
    lock(tmp_path).acquire().release()
    os.close(holding)


def test_what_is_no_owner_is_none(tmp_path: Path) -> None:
    for content in (b"", b"\x00" * 300, b"{}", b'{"pid": "x"}'):
        (tmp_path / ".lock").write_bytes(content)
        lock(tmp_path).acquire().release()


def test_a_folder_that_cannot_be_written_to_needs_no_lock() -> None:
    if not Path("/sys/kernel").is_dir():
        pytest.skip("there is no folder that refuses even the superuser")
    held = lock(Path("/sys/kernel")).acquire()
    held.check()
    held.release()


def test_a_folder_that_is_removed_meanwhile_is_locked_again(tmp_path: Path) -> None:
    held = lock(tmp_path / "gone").acquire()
    (tmp_path / "gone" / ".lock").unlink()
    (tmp_path / "gone").rmdir()
    held.check()
    assert held.is_held
    held.release()


# On another machine --------------------------------------------------------------------------------------------------


@pytest.fixture
def touched(tmp_path: Path) -> Iterator[None]:
    """An owner that gives signs of life."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.05):
            os.utime(tmp_path / ".lock")

    thread = threading.Thread(target=beat)
    leave(tmp_path, boot="another kernel", host="far")
    thread.start()
    yield
    ended.set()
    thread.join()


def test_an_owner_that_gives_signs_of_life_is_respected(tmp_path: Path, touched: None) -> None:
    with pytest.raises(FolderLocked, match="on far"):
        lock(tmp_path).acquire()


def test_one_that_was_silent_for_long_is_followed_at_once(tmp_path: Path) -> None:
    leave(tmp_path, age=folder.SILENCE + 1, boot="another kernel")
    start = time.monotonic()
    lock(tmp_path).acquire().release()
    assert time.monotonic() - start < 30


def test_one_that_falls_silent_is_waited_for_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A night's resume on another node, seconds after the first was lost: it waits, and is not refused."""
    monkeypatch.setattr(folder, "SILENCE", 1.0)
    leave(tmp_path, boot="another kernel")
    lock(tmp_path).acquire().release()


def test_the_clock_of_this_machine_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path, age=folder.SILENCE + 1, boot="another kernel")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    lock(tmp_path).acquire().release()


def test_two_containers_may_have_the_same_name_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine, two namespaces: whether a process of the other one is alive cannot be seen, but its lock can."""
    leave(tmp_path, space="another namespace")
    holding = os.open(tmp_path / ".lock", os.O_RDWR)
    lock_file(holding)
    ended = threading.Event()
    thread = threading.Thread(target=lambda: [os.utime(holding) for _ in iter(lambda: ended.wait(0.05), True)])
    thread.start()
    with pytest.raises(FolderLocked):
        lock(tmp_path).acquire()
    ended.set()
    thread.join()
    os.close(holding)  # it has ended
    lock(tmp_path).acquire().release()


def test_the_one_that_was_silent_notices_that_it_lost_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SILENCE", 0.5)
    slow = lock(tmp_path).acquire()
    said = json.loads((tmp_path / ".lock").read_text())
    (tmp_path / ".lock").write_text(json.dumps({**said, "boot": "another kernel"}))  # as another machine sees it
    after = lock(tmp_path).acquire()
    with pytest.raises(FolderLocked, match=r"has taken over .* nothing was heard of this one for 0.5 seconds; wait"):
        slow.check()
    slow.release()
    assert after.is_held, "the one that lost it leaves it alone"
    after.release()


def test_an_owner_touches_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "BEAT", 0.05)
    held = lock(tmp_path).acquire()
    os.utime(tmp_path / ".lock", (1.0, 1.0))
    until = time.monotonic() + 30
    while (tmp_path / ".lock").stat().st_mtime < 2.0 and time.monotonic() < until:
        time.sleep(0.02)
    assert (tmp_path / ".lock").stat().st_mtime > 2.0
    held.release()
