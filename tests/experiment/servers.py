"""Servers that are down in several ways, on this machine."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """An address at which connections are refused: its port is bound, and nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """An address at which connections are accepted and never answered."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextlib.contextmanager
def served(answer: Callable[[Any], None]) -> Iterator[str]:
    """An address at which ``answer`` is called with each request."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *words: Any) -> None: ...

        def __getattr__(self, name: str) -> Callable[[], None]:
            if not name.startswith("do_"):
                raise AttributeError(name)
            return lambda: answer(self)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def forward(request: Any, port: int) -> None:
    """Answers as the server at ``port`` does."""
    length = int(request.headers.get("Content-Length") or 0)
    content = request.rfile.read(length)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(request.command, request.path, content, dict(request.headers))
    answer = connection.getresponse()
    body = answer.read()
    request.send_response(answer.status)
    request.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
    connection.close()


def fail(request: Any) -> None:
    """Answers that the server cannot serve now."""
    request.send_response(500)
    request.send_header("Content-Length", "0")
    request.end_headers()
