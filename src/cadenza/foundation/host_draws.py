"""Random numbers of a callback's own, drawn on the host, whose state goes into a checkpoint."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from cadenza.foundation.arguments import whole

_VERSION = 3
"""Of the state of Python's generator, since Python 3.2."""


class Draws:
    """A generator that a callback keeps to itself, so that what others draw stays the same.

    It is seeded with ``seed``, or at its first use with one number from torch's global generator. Nothing is read from
    a device.

    >>> draws = Draws(seed=0)
    >>> state = draws.state_dict()
    >>> first = draws.uniform()
    >>> draws.load_state_dict(state)
    >>> draws.uniform() == first
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        whole("seed", seed, 0, or_none=True)
        self._generator = None if seed is None else random.Random(seed)

    @property
    def generator(self) -> random.Random:
        if self._generator is None:
            self._generator = random.Random(int(torch.randint(2**62, (), device="cpu")))
        return self._generator

    def uniform(self) -> float:
        """A number from 0 up to, not including, 1."""
        return self.generator.random()

    def below(self, count: int) -> int:
        """A whole number from 0 to ``count - 1``."""
        return self.generator.randrange(count)

    def beta(self, alpha: float) -> float:
        """A number between 0 and 1 from the Beta distribution with both parameters ``alpha``."""
        return self.generator.betavariate(alpha, alpha)

    def permutation(self, count: int, device: torch.device) -> Tensor:
        """The numbers from 0 to ``count - 1`` in random order; the copy to ``device`` does not wait."""
        shuffling = torch.Generator().manual_seed(self.generator.getrandbits(62))
        return torch.randperm(count, generator=shuffling, device="cpu").to(device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """The state of the generator; an empty tensor if nothing has been drawn and no seed was given."""
        numbers = () if self._generator is None else self._generator.getstate()[1]
        return {"generator": torch.tensor(numbers, dtype=torch.int64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        numbers = state["generator"].tolist()
        self._generator = random.Random(0) if numbers else None
        if self._generator is not None:
            self._generator.setstate((_VERSION, tuple(numbers), None))
