"""A loader like another one, but for what is to be different."""

from __future__ import annotations

import inspect
from typing import Any

from torch.utils.data import DataLoader

_OWN = frozenset(("self", "shuffle", "sampler", "batch_sampler"))
"""What decides the order of the samples: whoever makes a loader says that."""


def loader_like(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """A ``DataLoader`` with every setting of ``loader``, but for its order and for ``changes``.

    >>> loader = DataLoader(range(4), batch_size=2, drop_last=True)
    >>> larger = loader_like(loader, batch_size=3, sampler=[3, 2, 1, 0])
    >>> list(larger)
    [tensor([3, 2, 1])]
    """
    names = inspect.signature(DataLoader).parameters.keys() - _OWN - changes.keys()
    return DataLoader(**{name: getattr(loader, name) for name in names}, **changes)
