"""Processes that are started again meet each other, not what those before them left in torchrun's store."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch import distributed as dist

from cadenza.distributed.failures import restart_store
from cadenza.distributed.failures.restart_store import fresh_store


@pytest.fixture
def port():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    yield store.port
    del store  # its server ends with it


def meet(port, rank, begin):
    begin.wait(60)
    store = fresh_store("127.0.0.1", port, rank, 3, 60.0)
    if rank == 0:
        store.set("address", "here")
    return store.get("address"), store


@pytest.mark.parametrize("late", [0, 2])
def test_every_attempt_has_a_place_of_its_own(port, late):
    """Whoever comes last finds the others and everything that an earlier attempt left behind."""
    for _ in range(2):
        now, later = threading.Event(), threading.Event()
        with ThreadPoolExecutor(3) as threads:
            found = [threads.submit(meet, port, rank, later if rank == late else now) for rank in range(3)]
            now.set()
            later.set()
            answers = [one.result(60) for one in found]
        assert [address for address, _ in answers] == [b"here"] * 3
        assert not answers[late][1].check(["left behind"])
        answers[late][1].set("left behind", "yes")


def test_who_does_not_come_is_named(port, monkeypatch):
    """Time passes for those who meet, not for the store, which on a busy machine may need a while to answer."""
    hours = itertools.count(step=3600.0)
    monkeypatch.setattr(restart_store, "time", SimpleNamespace(monotonic=lambda: next(hours), sleep=time.sleep))
    with pytest.raises(TimeoutError, match=r"the ranks \[1\] have not come"):
        fresh_store("127.0.0.1", port, 0, 2, 60.0)
