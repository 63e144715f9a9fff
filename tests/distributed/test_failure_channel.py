"""The lifeline of rank 0, with a socket in the place of the other processes."""

from __future__ import annotations

import json
import os
import socket
import warnings

import pytest
import torch
from torch import distributed as dist

from cadenza.distributed.failures import join
from cadenza.distributed.failures.join import meet
from cadenza.distributed.failures.rank_errors import told
from cadenza.distributed.world import World

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def lifeline(request):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    size = getattr(request, "param", 3)
    yield meet(World(rank=0, world_size=size, local_world_size=size), torch.device("cpu"), 60.0)
    join.part()


class Other:
    """A process that has come to the lifeline."""

    def __init__(self, lifeline, rank):
        (listener,) = (key.fileobj for key in lifeline._selector.get_map().values() if key.data is None)
        self.end = socket.create_connection(listener.getsockname(), timeout=60)
        self.lines = self.end.makefile()
        self.say(hello=rank, token=lifeline._token)

    def say(self, **message):
        self.end.sendall(json.dumps(message).encode() + b"\n")

    def hear(self):
        return json.loads(self.lines.readline() or "null")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lines.close()
        self.end.close()


def failure(rank):
    return told(rank, "a place", ValueError(f"of rank {rank}"))


def test_the_first_failure_is_the_one_that_all_hear_of(lifeline):
    with Other(lifeline, 1) as one, Other(lifeline, 2) as two:
        one.say(failure=failure(1))
        assert one.hear()["failure"]["rank"] == 1
        two.say(failure=failure(2))
        assert two.hear()["failure"]["rank"] == 1
        lifeline.report(failure(0))
        assert lifeline.failure["rank"] == 1
        for other in (one, two):
            other.say(cut=True)


def test_all_have_cut_their_lines_when_each_has_said_so_or_is_gone(lifeline):
    lifeline.report(failure(0))  # before anybody has said hello
    with Other(lifeline, 1) as one:
        assert one.hear()["failure"]["rank"] == 0
        one.say(cut=True)
        with Other(lifeline, 2) as two:
            assert two.hear()["failure"]["rank"] == 0
            assert not lifeline._all_cut.is_set()
        heard = one.hear()
        while "failure" in heard:  # once more, since rank 2 is gone without a goodbye
            heard = one.hear()
        assert heard == {"all_cut": True}
    assert lifeline._all_cut.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.parametrize("lifeline", [2], indirect=True)
def test_a_child_that_was_forked_does_not_hold_the_connection_open(lifeline):
    with Other(lifeline, 1) as one:
        one.say(ask=1)
        assert one.hear()["of"] == 0  # by now it is known
        near, far = socket.socketpair()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # there are other threads
            child = os.fork()
        if child == 0:
            far.close()
            near.send(b"!")
            near.recv(1)  # until the parent is through
            os._exit(0)
        near.close()
        try:
            assert far.recv(1) == b"!"
            lifeline._wires[1].end.shutdown(socket.SHUT_RD)  # the lifeline finds it closed, and closes its own end
            assert one.hear() is None
        finally:
            far.close()
            os.waitpid(child, 0)
