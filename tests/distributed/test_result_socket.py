"""What workers of another engine send home: who may, what is kept, and what closes the line."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time

import pytest

from cadenza.distributed.launchers.local import WorkerDied
from cadenza.distributed.launchers.result_socket import Address, PostOffice
from cadenza.distributed.launchers.task import Errand, collect, raise_first


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder),))


def answered(address: Address, rank: int, found: object) -> bool:
    try:
        address.send(rank, found)  # type: ignore[arg-type]
    except (EOFError, OSError):
        return False
    return True


def test_a_letter_with_another_key_is_not_opened(tmp_path):
    with PostOffice("127.0.0.1") as post:
        forged = Address(post.address.host, post.address.port, b"x" * 32)
        assert not answered(forged, 0, {"result": Bomb(tmp_path / "opened")})
        assert answered(post.address, 1, {"result": b"fine"})
        assert post.found == {1: {"result": b"fine"}}
        assert not (tmp_path / "opened").exists()
        assert answered(post.address, 0, {"result": Bomb(tmp_path / "opened")})
        assert (tmp_path / "opened").exists()
    assert post.address.key.hex() not in repr(post.address)


def test_a_stranger_who_says_nothing_holds_nobody_up():
    with PostOffice("127.0.0.1") as post, socket.create_connection((post.address.host, post.address.port)):
        began = time.monotonic()
        assert answered(post.address, 0, {"result": b""})
        assert time.monotonic() - began < 50  # a stranger is listened to for sixty seconds


def test_a_worker_that_begins_again_leaves_no_trace_of_its_first_attempt():
    with PostOffice("127.0.0.1") as post:
        assert post.address.begin(0, lambda: None) == 1
        post.address.send(0, {"error": b"", "news": False})
        assert post.address.begin(0, lambda: None) == 2
        assert post.found == {}


def test_who_is_gone_is_noticed_by_the_workers():
    gone = threading.Event()
    with PostOffice("127.0.0.1") as post:
        post.address.begin(0, gone.set)
        assert not gone.wait(0.2)
    assert gone.wait(60)


def outcome_of(fn, *args, ranks=1, **options):
    """Runs errands in this process, one rank after the other, and returns the post office afterwards."""
    with PostOffice("127.0.0.1") as post:
        errand = Errand.of(fn, args, post, None, options.get("timeout"))
        for rank in range(ranks):
            try:
                pickle.loads(pickle.dumps(errand)).run(rank)
            except Exception as error:
                post.found[rank]["seen"] = error
        return post


def test_results_come_back_and_what_is_missing_is_named():
    post = outcome_of(len, "four", ranks=2)
    assert collect(post, 2, "main") == 4
    assert collect(post, 2, "all") == [4, 4]
    with pytest.raises(WorkerDied, match="ranks 2 of 3 left no result"):
        collect(post, 3, "main")


def test_the_first_error_that_is_no_news_is_raised():
    post = outcome_of(int, "no number")
    post.found[1] = {**post.found[0], "news": True}
    with pytest.raises(ValueError, match="no number") as caught:
        raise_first(post, 2, RuntimeError("what the engine said"))
    assert caught.value.__notes__ == ["cadenza: raised in the process of rank 0"]
    del post.found[0]
    with pytest.raises(WorkerDied, match="rank 0 of 2 was ended"):
        raise_first(post, 2, RuntimeError("what the engine said"))
    post.found.clear()
    with pytest.raises(WorkerDied, match="what the engine said"):
        raise_first(post, 2, RuntimeError("what the engine said"))
