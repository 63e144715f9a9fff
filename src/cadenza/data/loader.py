"""Checks a loader before it is read, and makes loaders like it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

_OWN = frozenset(("self", "shuffle", "sampler", "batch_sampler"))
"""What decides the order of the samples: whoever makes a loader says that."""


def length_of(loader: Any) -> int | None:
    """The number of batches in ``loader`` if it knows, else None."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def epoch_listeners(loader: Any) -> list[Any]:
    """The loader, its data set and its samplers, as far as they want to be told which epoch comes.

    >>> from torch.utils.data import DataLoader, DistributedSampler
    >>> sampler = DistributedSampler([1, 2, 3], num_replicas=1, rank=0)
    >>> epoch_listeners(DataLoader([1, 2, 3], sampler=sampler)) == [sampler]
    True
    """
    batches = getattr(loader, "batch_sampler", None)
    asked = (loader, getattr(loader, "dataset", None), getattr(loader, "sampler", None), batches)
    found = [one for one in (*asked, getattr(batches, "sampler", None)) if hasattr(one, "set_epoch")]
    return [one for place, one in enumerate(found) if all(one is not other for other in found[:place])]


def check_loader(what: str, loader: Any, *, several: bool = True) -> None:
    """Refuses a loader that cannot give a batch, before anything has begun. ``several`` allows a dict of them."""
    if not isinstance(loader, Mapping):
        _check_one(what, loader, several)
    elif not several:
        raise TypeError(f"{what} must be one loader, not a dict of them")
    elif not loader:
        raise ValueError(f"{what} is an empty dict; leave it out to have none")
    for name, one in loader.items() if isinstance(loader, Mapping) else ():
        if not isinstance(name, str) or not name:
            raise TypeError(f"{what}: the name of a loader is a text, not {name!r}")
        if isinstance(one, Mapping):
            raise TypeError(f"{what} {name!r} must be one loader, not a dict of them")
        _check_one(f"{what} {name!r}", one, several=False)


def _check_one(what: str, loader: Any, several: bool) -> None:
    check_kind(what, loader, several=several)
    if length_of(loader) == 0:
        raise ValueError(f"{what} is empty: it has no batch")


def check_kind(what: str, loader: Any, *, several: bool = False) -> None:
    """Refuses what gives no batches. A tensor could be gone over, but row by row, which nobody means.

    >>> check_kind("loader", Tensor([[1.0, 2.0]]))
    Traceback (most recent call last):
    TypeError: loader must be a DataLoader or a list of batches, not Tensor; one batch alone is given as [batch]
    """
    kind = type(loader).__name__
    if not hasattr(loader, "__iter__"):
        hint = "; wrap it in a torch.utils.data.DataLoader" if isinstance(loader, Dataset) else ""
        raise TypeError(f"{what} must be iterable, such as a DataLoader or a list of batches, not {kind}{hint}")
    if isinstance(loader, Tensor | str | bytes):
        hint = "; one batch alone is given as [batch]" if isinstance(loader, Tensor) else ""
        raise TypeError(f"{what} must be a DataLoader or a list of batches, not {kind}{hint}")
    if isinstance(loader, list | tuple) and any(isinstance(one, DataLoader) for one in loader):
        hint = 'name them in a dict, {"a": first, "b": second}' if several else "give one of them"
        raise TypeError(f"{what} is a {kind} of loaders, not of batches; {hint}")


def loader_like(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """A ``DataLoader`` with every setting of ``loader``, but for its order and for ``changes``.

    >>> loader = DataLoader(range(4), batch_size=2, drop_last=True)
    >>> larger = loader_like(loader, batch_size=3, sampler=[3, 2, 1, 0])
    >>> list(larger)
    [tensor([3, 2, 1])]
    """
    names = inspect.signature(DataLoader).parameters.keys() - _OWN - changes.keys()
    return DataLoader(**{name: getattr(loader, name) for name in names}, **changes)
