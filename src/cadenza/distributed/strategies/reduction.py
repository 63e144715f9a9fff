"""Gradients put together in one message after the backward, so that the step before and after it can be recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from cadenza.distributed.strategies.piggyback import NUMBERS, Ears, carries_seconds, on_device
from cadenza.foundation.torch_private import broadcast_together, buffers_in, foreach_copy_, foreach_mul_

_AT_ONCE = 250 * 2**20
"""Buffers of so many bytes are sent in one message, as DistributedDataParallel does."""


class Reduction:
    """The trained parameters of a module, and one long tensor for the gradients of each type. At the end of the first
    one a few numbers go along, as in ``Ride``; ``ears`` read them.

    ``between`` is called with what talks to the others. It calls that at once, unless a step is being recorded.
    """

    def __init__(self, module: nn.Module, world_size: int, ears: Ears) -> None:
        self.world_size, self.ears = world_size, ears
        self.names = {id(parameter): name for name, parameter in module.named_parameters()}
        self.between: Callable[[Callable[[], None]], None] = at_once
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for parameter in module.parameters():
            if parameter.requires_grad:
                kinds.setdefault(parameter.dtype, []).append(parameter)
        if not kinds:
            raise RuntimeError("no parameter is trained, so there are no gradients to put together: leave some trained")
        sorts = sorted(kinds, key=lambda dtype: (dtype.is_complex, not carries_seconds(dtype)))
        self._messages = [Message(kinds[dtype], NUMBERS if i == 0 else 0) for i, dtype in enumerate(sorts)]
        self._numbers = self._messages[0].flat[-NUMBERS:]
        self._whole = carries_seconds(self._numbers.dtype)

    @torch.no_grad()
    def reduce(self, say: Callable[[], list[float]], hear: Callable[[list[float]], None]) -> None:
        """Makes every gradient the mean over all processes. ``say`` gives the numbers to go along, ``hear`` gets their
        sums, if they are read this time."""
        gradients = [[self._gradient(parameter) for parameter in message.tensors] for message in self._messages]
        for message, some in zip(self._messages, gradients, strict=True):
            foreach_copy_(message.parts, some)
            foreach_mul_(message.parts, 1 / self.world_size)
        self.between(lambda: self._exchange(say, hear))
        for message, some in zip(self._messages, gradients, strict=True):
            foreach_copy_(some, message.parts)

    def _gradient(self, parameter: Tensor) -> Tensor:
        gradient = parameter.grad
        if gradient is None or gradient.layout is not torch.strided:
            what = "no gradient" if gradient is None else "a sparse gradient"
            raise RuntimeError(
                f"{self.names[id(parameter)]} has {what}, so the processes cannot put theirs together in one message: "
                'use execution="eager"' + (" and DDP(find_unused_parameters=True)" if gradient is None else "")
            )
        return gradient

    def _exchange(self, say: Callable[[], list[float]], hear: Callable[[list[float]], None]) -> None:
        numbers = self._numbers
        if self.ears.will_hear(numbers):
            asks, seconds = say()
            numbers.copy_(on_device([asks, seconds if self._whole else 0.0], numbers), non_blocking=True)
        for message in self._messages:
            dist.all_reduce(message.flat)
        heard = self.ears.hear(numbers)
        if heard is not None:
            hear(heard)


class Buffers:
    """The buffers of a module, such as the running means of BatchNorm: all processes get those of rank 0.

    They are looked up each time: a forward may make one, or put another tensor in its place.
    """

    def __init__(self, module: nn.Module) -> None:
        self._tables = [buffers_in(one) for one in module.modules()]

    @torch.no_grad()
    def share(self) -> None:
        buffers = [buffer for table in self._tables for buffer in table.values() if buffer is not None]
        if buffers:
            broadcast_together(buffers, _AT_ONCE)


class Message:
    """One long tensor, with a part for each of ``tensors`` or its gradient and room for ``more`` numbers."""

    def __init__(self, tensors: list[Tensor], more: int) -> None:
        self.tensors = tensors
        sizes = [tensor.numel() for tensor in tensors]
        like = tensors[0]
        self.flat = torch.zeros(sum(sizes) + more, dtype=like.dtype, device=like.device)
        pieces = torch.split(self.flat[: sum(sizes)], sizes)
        self.parts: list[Any] = [piece.view(one.shape) for piece, one in zip(pieces, tensors, strict=True)]


def at_once(talk: Callable[[], None]) -> None:
    talk()
