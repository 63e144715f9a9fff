"""Random numbers and deterministic mode, in one place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from cadenza.foundation.rng import seed_everything

__all__ = ["check_seed", "deterministic", "seed_everything"]


def check_seed(seed: object) -> int | None:
    """Refuses what can be no seed, when an experiment is made and not when it runs."""
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32):
        raise ValueError(f"a seed is a whole number from 0 to 2**32 - 1 or None, not {seed!r}")
    return seed


@contextlib.contextmanager
def deterministic(device: torch.device | str = "cpu") -> Iterator[None]:
    """Inside, torch uses algorithms that give the same bits each time, or raises where it has none.

    On CUDA, cuBLAS reads an environment variable when it is first used; since a library should not write the
    environment, it is asked for. Whatever was set before is set again afterwards.

    >>> with deterministic():
    ...     torch.are_deterministic_algorithms_enabled()
    True
    """
    if torch.device(device).type == "cuda" and "CUBLAS_WORKSPACE_CONFIG" not in os.environ:
        raise RuntimeError(
            "deterministic training on CUDA needs the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8 (or :16:8); "
            "set it before Python is started"
        )
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark
