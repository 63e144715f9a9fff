"""Where the host waits for a CUDA device: found before a step is captured, and forbidden while it is."""

from __future__ import annotations

import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cadenza.execution.recorded.recording import first_line
from cadenza.foundation.stand_in import StandIn
from cadenza.foundation.torch_private import end_allocating_to_pool

WAITED = "called a synchronizing CUDA operation"
PROTOTYPE = "Synchronization debug mode is a prototype"
"""How torch's warnings begin: that of a wait, and the one of the mode that makes it warn of waits."""
_HERE = threading.local()
"""Whether waits of this thread count at the moment, as ``_HERE.unwatched`` says."""


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
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")
    _HERE.unwatched = True
    try:
        talk()
    finally:
        _HERE.unwatched = False
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _instead(waited: Callable[[str], None]) -> Iterator[None]:
    """Reports the places of calls of ``synchronize``; those of capturing itself pass."""

    def note(caller: FrameType) -> None:
        if not getattr(_HERE, "unwatched", False) and caller.f_globals.get("__name__") != "torch.cuda.graphs":
            waited(f"{caller.f_code.co_filename}:{caller.f_lineno}")

    with noting_synchronize(note):
        yield


@contextmanager
def noting_synchronize(note: Callable[[FrameType], None]) -> Iterator[None]:
    """Calls ``note`` with the caller before each ``synchronize`` of this thread. Torch itself does not warn of these,
    only of those of a stream."""
    thread = threading.get_ident()

    def note_own(caller: FrameType) -> None:
        if threading.get_ident() == thread:
            note(caller)

    with ExitStack() as listening:
        for one in _SYNCHRONIZE:
            listening.enter_context(one.heard_by(note_own))
        yield


def _noted(wait: Callable[..., Any], tell: Callable[..., object]) -> Callable[..., Any]:
    def noted(*args: Any, **more: Any) -> Any:
        tell(sys._getframe(1))
        return wait(*args, **more)

    return noted


_SYNCHRONIZE = [StandIn(owner, "synchronize", _noted) for owner in (torch.cuda, torch.accelerator, torch.cuda.Event)]


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


_READS = {"tolist", "numpy", "__array__"}
_NOT_THE_USERS = tuple(str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))


class HostRead(RuntimeError):
    """The value of a tensor was asked for where steps are traced."""


class ReadingIsAnError(TorchFunctionMode):
    """Inside, a tensor does not become a list or an array: what is made of those would be the same in every step.

    >>> with ReadingIsAnError():
    ...     torch.ones(1).tolist()
    Traceback (most recent call last):
    cadenza.execution.recorded.host_sync.HostRead: tolist
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        by_values = name == "tensor_split" and any(
            isinstance(one, Tensor) for one in (*args[1:], *(kwargs or {}).values())
        )
        if name in _READS or by_values:
            raise HostRead(name)
        return func(*args, **(kwargs or {}))


def said_of(error: Exception) -> str:
    """Why a step cannot be traced; where a value is read on the host, the line that does it."""
    if not isinstance(error, HostRead) and "get value out of a tracing tensor" not in str(error):
        return first_line(error)
    places = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_USERS)
    ]
    where = f" at {places[-1]}" if places else ""
    return f"the step reads the value of a tensor on the host, as .item() and an if on a tensor do{where}"
