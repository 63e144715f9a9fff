"""One open connection from each process to rank 0: news of a failure travels on it, and its end is news as well.

Nothing is polled and nothing is sent while all goes well. A process that is killed closes its connection by dying.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torch import distributed as dist

from cadenza.distributed.failures.rank_errors import gone
from cadenza.distributed.failures.sockets import Line, cut
from cadenza.distributed.world import World

log = logging.getLogger("cadenza")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_REST, _MOMENT = 3.0, 0.2
"""Seconds after a failure for which a process that leaves waits until all have cut their lines, and for which it waits
where nobody tells, since rank 0 is gone."""


class Wire:
    """Lines of JSON over a socket."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.rank = -1
        self.said_goodbye = False
        self._rest = b""
        self._lock = threading.Lock()

    def send(self, **message: Any) -> None:
        with contextlib.suppress(OSError), self._lock:  # who cannot be reached is noticed when its end closes
            self.end.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived; None when the other end is closed."""
        try:
            read = self.end.recv(1 << 16)
        except OSError:
            return None
        if not read:
            return None
        *lines, self._rest = (self._rest + read).split(b"\n")
        return [json.loads(line) for line in lines]


class Lifeline:
    """This process's end. ``failure`` is the first that happened anywhere; then ``lines`` are cut, which ends every
    collective that waits, and ``on_failure`` is called. ``where`` answers where this process stands."""

    def __init__(self, world: World, lines: set[Line]) -> None:
        self.world, self.lines = world, lines
        self.failure: dict[str, Any] | None = None
        self.known = threading.Event()
        self.letters: dict[tuple[str, int], dict[str, Any]] = {}
        """On rank 0: what the others posted, by topic and rank. ``arrived`` guards it and wakes who waits for one."""
        self.arrived = threading.Condition()
        self.on_failure: Callable[[dict[str, Any]], None] = lambda failure: None
        self.where: Callable[[], str] = lambda: "outside a run"
        self._over = threading.Event()
        self._learning = threading.Lock()
        self._learned = 0.0
        self._kept: list[socket.socket] = []
        self._cut: set[int] = set()
        self._all_cut = threading.Event()
        self._places: dict[int, str] = {}
        self._selector = selectors.DefaultSelector()
        self._wires: dict[int, Wire] = {}
        self._token = secrets.token_hex(16)
        self._open()

    def _open(self) -> None:
        self._begin()
        atexit.register(self._at_exit)

    # Meeting --------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Rank 0 listens and tells where; the others connect. It needs one broadcast."""
        told: list[Any] = [None]
        if self.world.is_main:
            hosts = list(dict.fromkeys([self.world.address or "127.0.0.1", socket.gethostname()]))
            if self.world.local_world_size == self.world.world_size:
                hosts = ["127.0.0.1"]
            listener = socket.create_server((hosts[0] if hosts[0] in _LOOPBACK else "", 0), backlog=1024)
            self._selector.register(listener, selectors.EVENT_READ)
            told = [(hosts, listener.getsockname()[1], self._token)]
        dist.broadcast_object_list(told, src=0)
        if not self.world.is_main:
            wire = self._connect(*told[0])
            if wire is None:
                return
            self._wires[0] = wire
            self._selector.register(wire.end, selectors.EVENT_READ, wire)
        threading.Thread(target=self._serve, name="cadenza lifeline", daemon=True).start()

    def _connect(self, hosts: list[str], port: int, token: str) -> Wire | None:
        for host in hosts:
            with contextlib.suppress(OSError):
                wire = Wire(socket.create_connection((host, port), timeout=10))
                wire.end.settimeout(None)
                wire.rank = 0
                wire.send(hello=self.world.rank, token=token)
                return wire
        log.warning(
            "rank %d cannot reach rank 0 at %s port %d: failures will not be told", self.world.rank, hosts, port
        )
        return None

    # What the run says ----------------------------------------------------------------------------------------------

    def report(self, failure: dict[str, Any], patience: float = 3.0) -> None:
        """Tells all others of a failure here, and waits a little until rank 0 knows it."""
        if self.world.is_main:
            self._learn(failure)
        else:
            for wire in list(self._wires.values()):
                wire.send(failure=failure)
            self.known.wait(patience)

    def places(self, patience: float = 2.0) -> dict[int, str]:
        """Where each process stands, as far as they answer in time."""
        self._places = {self.world.rank: self.where()}
        for wire in list(self._wires.values()):
            wire.send(ask=self.world.rank)
        until = time.monotonic() + patience
        while len(self._places) < self.world.world_size and time.monotonic() < until and not self._over.is_set():
            time.sleep(0.02)
        return dict(self._places)

    def post(self, topic: str, letter: dict[str, Any]) -> None:
        """Sends rank 0 a letter. Unlike a collective this may be done in any thread."""
        for wire in list(self._wires.values()):
            wire.send(topic=topic, letter=letter)

    def connected(self) -> set[int]:
        """The ranks that this process has a connection to; of those that said goodbye nothing more will come."""
        return {rank for rank, wire in list(self._wires.items()) if not wire.said_goodbye}

    def leave(self) -> None:
        """Says goodbye, so that the end of this process is no news."""
        atexit.unregister(self._at_exit)
        self.on_failure, self.where = lambda failure: None, lambda: "outside a run"
        if self._over.is_set():
            return
        self.rest()
        for wire in list(self._wires.values()):
            wire.send(goodbye=True)
        self._over.set()
        for wire in list(self._wires.values()):
            with contextlib.suppress(OSError):
                wire.end.shutdown(socket.SHUT_WR)

    def rest(self) -> None:
        """After a failure: waits a little until no process uses its connection to this one any more (see ``cut``)."""
        if self.failure is not None:
            self._all_cut.wait(max(0.0, self._learned + _REST - time.monotonic()))
        while self._kept:
            self._kept.pop().close()

    def forsake(self) -> None:
        """In a child that was forked, such as a loader's worker: what it inherited is not its own, and would be held
        open when its parent is killed."""
        atexit.unregister(self._at_exit)
        while self._wires:
            self._wires.popitem()[1].end.close()

    def _at_exit(self) -> None:
        if getattr(sys, "last_value", None) is None:  # after an uncaught exception the end of this process is news
            self.leave()
        else:
            self.rest()

    # In the thread of the lifeline ----------------------------------------------------------------------------------

    def _serve(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(timeout=1.0):
                if key.data is None:
                    self._welcome(key.fileobj)
                else:
                    self._hear(key.data)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _welcome(self, listener: Any) -> None:
        with contextlib.suppress(OSError):
            end, _ = listener.accept()
            self._selector.register(end, selectors.EVENT_READ, Wire(end))

    def _hear(self, wire: Wire) -> None:
        messages = wire.receive()
        if messages is None:
            self._lose(wire)
            return
        for message in messages:
            if wire.rank < 0 and message.get("token") != self._token:
                self._selector.unregister(wire.end)
                wire.end.close()
                return
            self._obey(wire, message)

    def _lose(self, wire: Wire) -> None:
        """The other end is closed. Without a goodbye that is a failure; its lines are cut in any case."""
        self._selector.unregister(wire.end)
        wire.end.close()
        self._wires.pop(wire.rank, None)
        if wire.rank >= 0 and not wire.said_goodbye and not self._over.is_set():
            self._learn(gone(wire.rank))
        if not self.world.is_main:
            time.sleep(_MOMENT)  # nobody is left to tell when all have cut their lines
        self._cut.add(wire.rank)
        self._look_who_cut()

    def _obey(self, wire: Wire, message: dict[str, Any]) -> None:
        if "hello" in message:
            wire.rank = message["hello"]
            self._wires[wire.rank] = wire
            if self.failure is not None:
                wire.send(failure=self.failure)
        elif "goodbye" in message:
            wire.said_goodbye = True
        elif "failure" in message:
            self._learn(message["failure"])
        elif "cut" in message:
            self._cut.add(wire.rank)
            self._look_who_cut()
        elif "all_cut" in message:
            self._all_cut.set()
        elif "ask" in message:
            self._answer(wire, message["ask"])
        elif "place" in message:
            self._pass_on(message)
        elif "topic" in message:
            with self.arrived:
                self.letters[message["topic"], wire.rank] = message["letter"]
                self.arrived.notify_all()

    def _answer(self, wire: Wire, asker: int) -> None:
        """Somebody wants to know where all stand: this process answers, and rank 0 asks the others as well."""
        wire.send(place=self.where(), of=self.world.rank, to=asker)
        if self.world.is_main:
            for rank, other in list(self._wires.items()):
                if rank != asker:
                    other.send(ask=asker)

    def _pass_on(self, message: dict[str, Any]) -> None:
        if message["to"] == self.world.rank:
            self._places[message["of"]] = message["place"]
        elif message["to"] in self._wires:
            self._wires[message["to"]].send(**message)

    def _learn(self, failure: dict[str, Any]) -> None:
        """The first failure wins; rank 0 tells the others."""
        with self._learning:  # the run of rank 0 may fail while the thread of the lifeline hears of another
            first = self.failure is None
            if first:
                self._learned, self.failure = time.monotonic(), failure
        if self.world.is_main:
            for wire in list(self._wires.values()):
                wire.send(failure=self.failure)
        if first:
            self.known.set()
            self._kept = cut(self.lines)
            self._tell_of_cut()
            self.on_failure(failure)

    def _tell_of_cut(self) -> None:
        if self.world.is_main:
            self._cut.add(self.world.rank)
            self._look_who_cut()
        else:
            for wire in list(self._wires.values()):
                wire.send(cut=True)

    def _look_who_cut(self) -> None:
        """Rank 0 tells when all have cut their lines or are gone; without a connection to it nobody can know."""
        done = self._cut >= set(range(self.world.world_size)) if self.world.is_main else not self._wires
        if done and not self._all_cut.is_set():
            self._all_cut.set()
            for wire in list(self._wires.values()):
                wire.send(all_cut=True)


class NoChannel(Lifeline):
    """For processes that shall have no failure channel: no connection, no thread, and no news of a failure."""

    def __init__(self, world: World) -> None:
        super().__init__(world, set())

    def _open(self) -> None:
        self._over.set()

    def report(self, failure: dict[str, Any], patience: float = 3.0) -> None:
        self.failure = failure

    def rest(self) -> None: ...
