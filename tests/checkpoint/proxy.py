"""A server that stands before another one, and can be silent, or gone."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from urllib.parse import urlsplit


class Proxy:
    """Passes bytes on to ``target``. ``hush()``: connections are accepted, and nothing is answered. ``leave()``: they
    are refused. ``come_back()`` ends both."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self.target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.silent = threading.Event()
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._listener = self._listen(0)
        self.port = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.connections += 1
                self._open.add(client)
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), client, socket.create_connection(self.target) as server:
            self._open.add(server)
            with selectors.DefaultSelector() as ready:
                ready.register(client, selectors.EVENT_READ, server)
                ready.register(server, selectors.EVENT_READ, client)
                while True:
                    for key, _ in ready.select():
                        content = key.fileobj.recv(2**16)  # type: ignore[union-attr]
                        if self.silent.is_set():
                            content = b""  # what was asked is never answered, also later
                            while self.silent.wait(0.05) and self.silent.is_set():
                                threading.Event().wait(0.05)
                        if not content:
                            return
                        key.data.sendall(content)

    def hush(self) -> None:
        self.silent.set()

    def leave(self) -> None:
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def come_back(self) -> None:
        if self.silent.is_set():
            self.silent.clear()
        else:
            self._listener = self._listen(self.port)
