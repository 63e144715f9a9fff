"""Where the host waits for a CUDA device: found before a step is captured, and forbidden while it is."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any

import torch

from cadenza.foundation.torch_private import end_allocating_to_pool

WAITED = "called a synchronizing CUDA operation"
PROTOTYPE = "Synchronization debug mode is a prototype"
"""How torch's warnings begin: that of a wait, and the one of the mode that makes it warn of waits."""
_watching = True


@contextmanager
def host_waits() -> Iterator[list[str]]:
    """Lists the places at which the host waits inside. A program that has torch tell of waits itself keeps that."""
    found: list[str] = []
    if torch.cuda.get_sync_debug_mode() != 0:
        yield found
        return
    with warnings.catch_warnings(record=True) as caught, _instead(lambda place: found.append(place)):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for one in caught:
        if str(one.message).startswith(WAITED):
            found.append(f"{one.filename}:{one.lineno}")
        elif not str(one.message).startswith(PROTOTYPE):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """A wait inside raises on the host, and does not reach the device."""

    def refuse(place: str) -> None:
        raise RuntimeError(f"the step waits for the device: {place}")

    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", PROTOTYPE)
        torch.cuda.set_sync_debug_mode("error")
    try:
        with _instead(refuse):
            yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def unwatched(talk: Callable[[], None]) -> None:
    """Calls ``talk``, which may wait."""
    global _watching
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")
    _watching = False
    try:
        talk()
    finally:
        _watching = True
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _instead(waited: Callable[[str], None]) -> Iterator[None]:
    """Reports the places of calls of ``synchronize``; those of capturing itself pass."""

    def note(caller: FrameType) -> None:
        if _watching and caller.f_globals.get("__name__") != "torch.cuda.graphs":
            waited(f"{caller.f_code.co_filename}:{caller.f_lineno}")

    with noting_synchronize(note):
        yield


@contextmanager
def noting_synchronize(note: Callable[[FrameType], None]) -> Iterator[None]:
    """Calls ``note`` with the caller before each ``synchronize``, of which torch itself does not warn. It does of those
    of a stream."""
    with ExitStack() as undo:
        owners: tuple[Any, ...] = (torch.cuda, torch.accelerator, torch.cuda.Event)
        for owner in owners:
            wait = owner.synchronize
            owner.synchronize = _noted(wait, note)
            undo.callback(setattr, owner, "synchronize", wait)
        yield


def _noted(wait: Callable[..., Any], note: Callable[[FrameType], None]) -> Callable[..., Any]:
    def noted(*args: Any, **more: Any) -> Any:
        note(sys._getframe(1))
        return wait(*args, **more)

    return noted


def recover(device: torch.device, pool: Any) -> None:
    """After a capture that the device itself ended: torch leaves its generator and its memory as if capturing went on.
    Ends both; an empty capture that succeeds puts the generator right."""
    with suppress(Exception):
        torch.ones((), device=device).bernoulli_()
        return
    with suppress(Exception):
        end_allocating_to_pool(device, pool)
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            pass
