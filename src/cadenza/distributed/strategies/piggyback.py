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


class Ears:
    """Reads numbers that were put together over all processes.

    On the CPU they are read at once. On a device that would wait, so there every fourth message is copied to the host
    and read three messages later, when the copy is long done; what is asked stays asked until then.
    """

    def __init__(self) -> None:
        self._count = 0
        self._waiting: deque[tuple[int, Tensor, Any]] = deque()

    def will_hear(self, numbers: Tensor) -> bool:
        """Whether what the next message carries in ``numbers`` is read by anybody."""
        return numbers.device.type == "cpu" or (self._count + 1) % _SAMPLED == 0

    def hear(self, numbers: Tensor) -> list[float] | None:
        """What ``numbers`` hold, or those of an earlier message, or None if nothing is read this time."""
        if numbers.device.type == "cpu":
            return [float(number) for number in numbers.tolist()]
        self._count += 1
        if self._count % _SAMPLED == 0:
            copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            copy.copy_(numbers, non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
            self._waiting.append((self._count + _LAG, copy, done))
        if self._waiting and self._waiting[0][0] <= self._count:
            _, copy, done = self._waiting.popleft()
            done.synchronize()  # of a step that was over long ago
            return [float(number) for number in copy.tolist()]
        return None


def carries_seconds(dtype: torch.dtype) -> bool:
    """Whether a number of seconds survives in ``dtype``."""
    return dtype in (torch.float32, torch.float64)


def on_device(numbers: list[float], like: Tensor) -> Tensor:
    """``numbers`` beside ``like``, without a wait for its device."""
    made = torch.tensor(numbers, dtype=like.dtype)
    return made if like.device.type == "cpu" else made.pin_memory().to(like.device, non_blocking=True)


class Ride:
    """Puts numbers on a backward, and reads what the others put on theirs."""

    def __init__(self, carrier: Carrier, world_size: int) -> None:
        self.carrier, self.world_size = carrier, world_size
        self._whole = carries_seconds(carrier.numbers.dtype)
        self._ears = Ears()

    def put_on(self, loss: Tensor, asks: float, seconds: float) -> Tensor:
        """``loss``, whose backward also carries these numbers."""
        numbers = self.carrier.numbers
        if self._ears.will_hear(numbers):
            load = on_device([asks, seconds if self._whole else 0.0], numbers)
        else:
            load = torch.zeros_like(numbers)
        carried: Tensor = _Carry.apply(loss, numbers, load)  # type: ignore[no-untyped-call]
        return carried

    def take_off(self) -> list[float] | None:
        """After a reduction: how many ask and rank 0's time, or None if it is not read this time."""
        numbers, self.carrier.numbers.grad = self.carrier.numbers.grad, None
        heard = None if numbers is None else self._ears.hear(numbers)
        return None if heard is None else [number * self.world_size for number in heard]
