"""The memory of graphs: where they read their batch, and where they leave their losses.

To start something small on a device takes the host longer than the device takes to do it, so there are few calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from cadenza.engine.state import OnPage, Page
from cadenza.foundation.torch_private import foreach_copy_
from cadenza.foundation.tree import tensors_of, with_tensors

SMALL = 2**14
"""So many words the device copies in one call for several tensors as fast as in one call for each."""
LINES = 128
"""So many losses stand on a page."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Inputs:
    """Tensors like those of ``batch``, into which others are copied before each step: small ones all at once."""

    def __init__(self, batch: Any) -> None:
        self.batch = with_tensors(batch, lambda tensor: tensor.detach().clone())
        self.tensors = [tensor.detach() for tensor in tensors_of(self.batch)]  # a model may want gradients of them
        self.flat = type(batch) in (list, tuple) and all(isinstance(part, Tensor) for part in batch)
        self.word = common_word(list(tensors_of(batch)))
        self.words = [] if self.word is None else [tensor.view(self.word) for tensor in self.tensors]

    def take(self, batch: Any) -> None:
        given = batch if self.flat else list(tensors_of(batch))
        if self.word is not None:
            word = self.word
            foreach_copy_(self.words, [tensor.view(word) for tensor in given])
            return
        for mine, one in zip(self.tensors, given, strict=True):
            mine.copy_(one.detach() if one.requires_grad else one, non_blocking=True)


def common_word(tensors: list[Tensor]) -> torch.dtype | None:
    """The type as which the bytes of all ``tensors`` can be copied in one call, if that pays.

    >>> common_word([torch.ones(4, 2), torch.ones(4, dtype=torch.int64)])
    torch.int32
    """
    if len(tensors) < 2 or len({tensor.device for tensor in tensors}) > 1 or not all(map(_is_plain, tensors)):
        return None
    size = min(tensor.itemsize for tensor in tensors)
    return _WORDS[size] if sum(tensor.nbytes for tensor in tensors) <= size * SMALL else None


def _is_plain(tensor: Tensor) -> bool:
    dense = type(tensor) is Tensor and tensor.layout is torch.strided and tensor.itemsize in _WORDS
    return dense and tensor.dim() > 0 and tensor.is_contiguous() and tensor.stride(-1) == 1 and not tensor.is_complex()


class Losses:
    """A page of memory on which each step leaves its loss in the next place."""

    def __init__(self, like: Tensor) -> None:
        self._memory = torch.zeros(LINES, dtype=like.dtype, device=like.device)
        self._numbers = torch.arange(LINES, device=like.device)
        self._next = torch.zeros((), dtype=torch.int64, device=like.device)
        self._places = self._memory.unbind()
        self._page, self._count = Page(self._places), 0

    @torch.no_grad()
    def write(self, loss: Tensor) -> None:
        """As part of a step. The place is counted on the device, since the host is not there when it is played."""
        torch.where(self._numbers == self._next, loss, self._memory, out=self._memory)
        self._next += 1

    def of(self, step: Callable[[], None]) -> OnPage:
        """Makes a step, and returns the loss that it wrote."""
        if self._count == LINES:
            self._turn()
        try:
            step()
            self._count += 1
        except BaseException:  # such as Ctrl-C, of which nobody knows whether it came before the step or after it
            with suppress(RuntimeError):  # of a device that is broken, which the first error says
                self._next.fill_(self._count)
            raise
        return OnPage(self._page, self._count - 1)

    def _turn(self) -> None:
        """What was written on the page stands in a copy from now on. Broken off in the midst it can be done again."""
        self._page.places = self._memory.clone().unbind()
        self._next.zero_()
        self._page, self._count = Page(self._places), 0
