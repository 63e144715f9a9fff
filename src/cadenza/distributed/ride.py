"""A few numbers that ride along with the gradients, so that nobody waits for a message of their own.

They are a parameter of their own: DDP puts it into a bucket with others, so there is no further collective, and its
"gradient" is what this process has to say. After the reduction it is the mean over all processes.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

NUMBERS = 2
"""Whether somebody asks for anything, and the time on rank 0."""
_SAMPLED, _LAG = 4, 3


class Carrier(nn.Module):
    """The user's module, and beside it the parameter whose gradient carries the numbers."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        like = next(p for p in module.parameters() if p.requires_grad and p.is_floating_point())
        self.numbers = nn.Parameter(torch.zeros(NUMBERS, dtype=like.dtype, device=like.device))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)


class _Carry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, numbers: Tensor, load: Tensor) -> Tensor:
        ctx.load = load
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None]:
        return gradients[0], ctx.load, None


class Ride:
    """Puts numbers on a backward, and reads what the others put on theirs.

    On the CPU they are read at once. On a device that would wait, so there every fourth reduction is copied to the host
    and read three reductions later, when the copy is long done; what is asked stays asked until then.
    """

    def __init__(self, carrier: Carrier, world_size: int) -> None:
        self.carrier, self.world_size = carrier, world_size
        self.on_cpu = carrier.numbers.device.type == "cpu"
        self.whole = carrier.numbers.dtype in (torch.float32, torch.float64)
        self._count = 0
        self._waiting: deque[tuple[int, Tensor, Any]] = deque()

    def put_on(self, loss: Tensor, asks: bool, seconds: float) -> Tensor:
        """``loss``, whose backward also carries these numbers."""
        like = self.carrier.numbers
        load = torch.tensor([float(asks), seconds if self.whole else 0.0], dtype=like.dtype)
        if not self.on_cpu:
            load = load.pin_memory().to(like.device, non_blocking=True)
        carried: Tensor = _Carry.apply(loss, like, load)  # type: ignore[no-untyped-call]
        return carried

    def take_off(self) -> tuple[float, float] | None:
        """After a reduction: whether somebody asks and rank 0's time, or None if it is not read this time."""
        numbers, self.carrier.numbers.grad = self.carrier.numbers.grad, None
        if numbers is None:
            return None
        if self.on_cpu:
            return self._read(numbers)
        self._count += 1
        if self._count % _SAMPLED == 0:
            copy = torch.empty(NUMBERS, dtype=numbers.dtype, pin_memory=True)
            copy.copy_(numbers, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
            self._waiting.append((self._count + _LAG, copy, done))
        if self._waiting and self._waiting[0][0] <= self._count:
            _, copy, done = self._waiting.popleft()
            done.synchronize()  # of a step that was over long ago
            return self._read(copy)
        return None

    def _read(self, numbers: Tensor) -> tuple[float, float]:
        asks, seconds = numbers.tolist()
        return asks * self.world_size, seconds * self.world_size
