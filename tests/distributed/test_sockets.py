"""Connections are cut so that nobody waits for ever: this end reads no more, the other may still write."""

from __future__ import annotations

import os
import socket
import sys
import threading

import pytest
from tests.distributed.crew import fitted, play
from tests.distributed.trainings import BreaksOff

from cadenza import launch
from cadenza.distributed.failures import sockets
from cadenza.distributed.failures.sockets import cut, open_lines


@pytest.fixture
def ends(monkeypatch):
    """The two ends of a connection on this machine. Nobody closes one by itself, and nobody waits for that."""
    monkeypatch.setattr(sockets, "_PATIENCE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        yield near, far


def line_of(end):
    return {line for line in open_lines() if line[0] == end.fileno()}


def test_a_cut_end_has_read_its_last(ends):
    near, far = ends
    far.sendall(b"before")
    kept = cut(line_of(near))
    assert near.recv(100) == b"before"
    assert near.recv(100) == b""
    kept[0].close()


def test_the_other_end_may_write_until_the_kept_one_is_closed(ends):
    near, far = ends
    kept = cut(line_of(near))
    near.close()  # as gloo does when it has read its last
    for _ in range(3):
        far.sendall(b"an answer")
    kept[0].close()
    with pytest.raises(ConnectionResetError):
        far.recv(1)


def test_a_number_that_belongs_to_another_is_left_alone(ends):
    near, far = ends
    known = line_of(near)
    os.dup2(far.fileno(), near.fileno())
    assert cut(known) == []


def test_a_line_is_cut_when_its_owner_has_closed_it(ends, monkeypatch):
    monkeypatch.setattr(sockets, "_PATIENCE", 60.0)
    near, _ = ends
    known, closed = line_of(near), []

    def owner():
        closed.append(near.recv(1))
        near.close()

    reading = threading.Thread(target=owner)
    reading.start()
    kept = cut(known)
    assert closed == [b""]
    assert not known & open_lines()
    kept[0].close()
    reading.join()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
def test_a_process_that_may_open_nothing_more_cuts_its_lines_all_the_same(ends):
    import resource

    near, far = ends
    known, limits = line_of(near), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        kept = cut(known)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert kept == []
    assert near.recv(1) == b""
    far.sendall(b"an answer")


def broken_off():
    return fitted([BreaksOff(3)])["error"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_processes_that_fail_in_the_same_moment_all_end(tmp_path):
    """Right after a collective, while some of its messages are still on their way."""
    rounds = 200
    found = launch(play, tmp_path, [(broken_off, ())] * rounds, workers=4, results="all", timeout=500)
    assert all("broken off" in error for errors in found for error in errors)
