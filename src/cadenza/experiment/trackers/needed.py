"""Packages that a tracker needs, and importing them without what they would send."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any


def need(package: str, who: str) -> None:
    """Refuses, when a tracker is made, one whose package is missing."""
    if find_spec(package) is None:
        raise ImportError(f"{who} needs the package {package}: pip install 'cadenza[{package}]'")


@contextlib.contextmanager
def for_now(**variables: str) -> Iterator[None]:
    """Environment variables inside, and none of them afterwards; one that the user has set stays as it is."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def quietly(package: str, **variables: str) -> Any:
    """Imports ``package``; if that is the first time, with ``variables`` in the environment while it is imported.

    Some packages begin to report how they are used as they are imported, and can only be asked not to in this way.
    """
    if package in sys.modules:
        return sys.modules[package]
    with for_now(**variables), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(package)
