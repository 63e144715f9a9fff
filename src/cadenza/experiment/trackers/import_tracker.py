"""Packages that a tracker needs, and importing them without what they would send."""

from __future__ import annotations

import contextlib
import importlib
import ssl
import sys
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, TextIO, cast
from urllib.parse import urlsplit, urlunsplit

from cadenza.foundation.environment import environment_with

ANSWER = 10.0
"""Seconds within which a server has to say anything at all."""


def need(package: str, who: str) -> None:
    """Refuses, when a tracker is made, one whose package is missing."""
    if find_spec(package) is None:
        raise ImportError(f"{who} needs the package {package}: pip install 'cadenza[{package}]'")


def quietly(package: str, **variables: str) -> Any:
    """Imports ``package``; if that is the first time, with ``variables`` in the environment while it is imported.

    Some packages begin to report how they are used as they are imported, and can only be asked not to in this way.
    """
    if package in sys.modules:
        return sys.modules[package]
    with environment_with(variables), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(package)


def ask(address: str) -> None:
    """Raises an error if no server answers at ``address``, or only that it cannot serve now.

    The clients of servers try again for minutes before they say so. Nothing secret is sent, and nothing that comes
    back is used.
    """
    parts = urlsplit(address)
    address = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.build_opener(urllib.request.HTTPSHandler(context=context)).open(address, timeout=ANSWER):
            pass
    except urllib.error.HTTPError as answer:
        if answer.code >= 500:
            raise ConnectionError(f"the server answers {answer.code} {answer.reason}") from None


class _Muted:
    """A stream that leaves out what one thread writes."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self.thread else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """What this thread prints inside is not shown; what others print is."""
    before, sys.stdout = sys.stdout, cast(TextIO, _Muted(sys.stdout))
    here = sys.stdout
    try:
        yield
    finally:
        if sys.stdout is here:
            sys.stdout = before
