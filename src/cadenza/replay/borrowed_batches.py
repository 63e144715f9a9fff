"""Batches that are kept without a copy: as long as nobody changes them, a reference holds what a copy would.

Every change that torch makes in place is counted in the version of a tensor, so that a reference can be asked whether
it still holds what was lent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cadenza.foundation.torch_private import version_of as _version

_WATCHED = 8
"""So many batches are kept beside their copies before others are lent."""
_TENSORS = frozenset({Tensor})


def lasting(tensor: Tensor) -> bool:
    """Whether all changes of ``tensor`` are counted: it lies on the host, and no NumPy array or process shares it.

    >>> import numpy
    >>> lasting(torch.ones(2)), lasting(torch.from_numpy(numpy.ones(2)))
    (True, False)
    """
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_inference():
        return False
    memory = tensor.untyped_storage()
    return memory.resizable() and not memory.is_shared()  # no memory is resizable that somebody else has, too


class Lending:
    """Decides whether batches, lists or tuples of plain tensors, are lent in place of being copied.

    The first ones are copied and the originals watched. If something changes those, as a transform in place or a loader
    that fills the same memory again does, all that follow are copied, too; other forms always are.
    """

    def __init__(self) -> None:
        self.trusted: bool | None = None
        self._watched: list[tuple[Any, Any]] = []

    def watch(self, batch: Any, copy: Any) -> None:
        """Keeps a batch beside its copy, to see later whether it was changed."""
        if self.trusted is None and len(self._watched) < _WATCHED:
            if is_plain(batch) and all(map(lasting, batch)):
                self._watched.append((type(batch)(batch), copy))
            else:
                self.distrust()

    def judge(self) -> None:
        """Compares the batches that are watched with their copies, once there are enough of them."""
        if self.trusted is None and len(self._watched) == _WATCHED:
            watched = [pair for batch, copy in self._watched for pair in zip(batch, copy, strict=True)]
            self.trusted = all(torch.equal(*pair) for pair in watched)
            self._watched.clear()

    def distrust(self) -> None:
        """Something that was lent has been changed, or can be without being noticed."""
        self.trusted = False
        self._watched.clear()


def is_plain(batch: Any) -> bool:
    """Whether ``batch`` is a list or a tuple of tensors and nothing else."""
    return type(batch) in (list, tuple) and _TENSORS.issuperset(map(type, batch))


class Loan:
    """A plain batch that is kept without a copy, and the versions of its tensors at that time."""

    __slots__ = ("batch", "versions")

    def __init__(self, batch: Any) -> None:
        self.batch = type(batch)(batch)
        self.versions = tuple(map(_version, batch))

    def is_intact(self) -> bool:
        """Whether nobody has changed it since."""
        return tuple(map(_version, self.batch)) == self.versions
