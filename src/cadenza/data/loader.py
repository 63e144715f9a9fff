"""What can be known of a loader before it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def length_of(loader: Any) -> int | None:
    """The number of batches in ``loader`` if it knows, else None."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def check_loader(what: str, loader: Any) -> None:
    """Refuses a loader that cannot give a batch, before anything has begun."""
    if isinstance(loader, Mapping):
        if not loader:
            raise ValueError(f"{what} is an empty dict")
        for name, one in loader.items():
            check_loader(f"{what} {name!r}", one)
    elif not hasattr(loader, "__iter__"):
        raise TypeError(
            f"{what} must be iterable, such as a DataLoader or a list of batches, not {type(loader).__name__}"
        )
    elif length_of(loader) == 0:
        raise ValueError(f"{what} is empty: it has no batch")
