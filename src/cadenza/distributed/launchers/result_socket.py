"""How results and errors come back from workers that another engine started: by a socket of the one who launches.

Nothing is unpickled that does not carry a signature made with a key which only the workers of this launch know.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import pickle
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_DIGEST = 32


@dataclass(frozen=True)
class Address:
    """Where a worker sends what it has to say, and the key by which it is known. It travels with the work."""

    host: str
    port: int
    key: bytes = field(repr=False)

    def begin(self, rank: int, bereft: Callable[[], None]) -> int:
        """Tells that a process of ``rank`` begins, and returns how often one has. If the one who launches is gone,
        ``bereft`` is called: nobody waits for the result any more."""
        end, count = self._deliver(rank, None)

        def listen() -> None:
            with end, contextlib.suppress(OSError):
                end.settimeout(None)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                end.recv(1)
            bereft()

        threading.Thread(target=listen, name="cadenza follows its launch", daemon=True).start()
        return count

    def send(self, rank: int, found: dict[str, Any]) -> None:
        """Delivers what the process of ``rank`` left behind; when this returns it is there."""
        self._deliver(rank, found)[0].close()

    def _deliver(self, rank: int, found: dict[str, Any] | None) -> tuple[socket.socket, int]:
        letter = pickle.dumps((rank, found))
        head = len(letter).to_bytes(8, "little") + hashlib.sha256(letter).digest()
        end = socket.create_connection((self.host, self.port), timeout=60)
        try:
            end.sendall(head + _sign(self.key, head) + letter)
            return end, int.from_bytes(_read(end, 8), "little")
        except BaseException:
            end.close()
            raise


class PostOffice:
    """Open while it is entered. ``found`` holds for each rank what its process left, of the last attempt.

    >>> with PostOffice("127.0.0.1") as post:
    ...     post.address.send(1, {"result": b"..."})
    ...     post.found
    {1: {'result': b'...'}}
    """

    def __init__(self, host: str) -> None:
        self.found: dict[int, dict[str, Any]] = {}
        self.begun: dict[int, int] = {}
        self._held: list[socket.socket] = []
        self._listener = socket.create_server((host, 0), backlog=1024)
        self._listener.settimeout(0.5)  # closing it does not wake one who accepts
        self.address = Address(host, self._listener.getsockname()[1], secrets.token_bytes(32))
        self._open = True
        self._thread = threading.Thread(target=self._receive, name="cadenza post office", daemon=True)

    def __enter__(self) -> PostOffice:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._thread.join()
        self._listener.close()
        for end in self._held:
            end.close()

    def _receive(self) -> None:
        while self._open:
            with contextlib.suppress(TimeoutError, ConnectionError):
                end, _ = self._listener.accept()
                threading.Thread(target=self._take, args=(end,), daemon=True).start()

    def _take(self, end: socket.socket) -> None:
        """One letter. Who does not know the key is not listened to any further."""
        keep = False
        try:
            end.settimeout(60)
            head, signature = _read(end, 8 + _DIGEST), _read(end, _DIGEST)
            if hmac.compare_digest(signature, _sign(self.address.key, head)):
                letter = _read(end, int.from_bytes(head[:8], "little"))
                if hashlib.sha256(letter).digest() == head[8:]:
                    keep = self._file(end, *pickle.loads(letter))
        except (OSError, EOFError):
            pass  # who sent it will see that it was not answered
        finally:
            if not keep:
                end.close()

    def _file(self, end: socket.socket, rank: int, found: dict[str, Any] | None) -> bool:
        """Notes what was told. The line of one who begins is held as long as this is open."""
        if found is None:
            self.begun[rank] = self.begun.get(rank, 0) + 1
            self.found.pop(rank, None)
            self._held.append(end)
        else:
            self.found[rank] = found
        end.sendall(self.begun.get(rank, 0).to_bytes(8, "little"))
        return found is None


def _sign(key: bytes, head: bytes) -> bytes:
    return hmac.digest(key, head, "sha256")


def _read(end: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = end.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError("the other end closed early")
        parts += part
    return bytes(parts)
