"""A place to meet that nobody was at before.

torchrun keeps one store for all of its restarts, and in it lie the addresses that processes had which are gone. So the
processes of now first make sure that they talk to each other, and then meet under a name that only they know.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torch import distributed as dist

_PAUSE = 0.02


def has_old_store(environment: Mapping[str, str]) -> bool:
    """Whether the store in which the processes meet outlives them."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def fresh_store(address: str, port: int, rank: int, world_size: int, timeout: float) -> Any:
    """The part of the store at that address which is new to all processes that are here now. Each must call this."""
    whole: Any = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, world_size, is_master=False, timeout=timedelta(seconds=timeout)
    )
    store: Any = dist.PrefixStore("cadenza meeting", whole)  # type: ignore[attr-defined]
    own, until = secrets.token_hex(8), time.monotonic() + timeout
    name = _gather(store, own, world_size, until) if rank == 0 else _answer(store, own, rank, until)
    return dist.PrefixStore(f"cadenza {name}", whole)  # type: ignore[attr-defined]


def _gather(store: Any, name: str, world_size: int, until: float) -> str:
    """Rank 0 answers everyone's call with the name of the meeting, until all have said that name."""
    waiting: set[int] = set(range(1, world_size))
    answered: dict[int, str] = {}
    while waiting:
        for rank in sorted(waiting):
            call = _read(store, f"call {rank}")
            if call is not None and answered.get(rank) != call:  # the first may be an old one
                store.set(f"answer {rank}", f"{call} {name}")
                answered[rank] = call
            if _read(store, f"heard {rank}") == name:
                waiting.discard(rank)
        _pause(until, f"the ranks {sorted(waiting)} have not come" if waiting else "")
    return name


def _answer(store: Any, own: str, rank: int, until: float) -> str:
    """Calls, and takes the name that comes with the answer to this very call."""
    store.set(f"call {rank}", own)
    while True:
        call, _, name = (_read(store, f"answer {rank}") or "").partition(" ")
        if call == own:
            store.set(f"heard {rank}", name)
            return name
        _pause(until, "rank 0 has not answered")


def _read(store: Any, key: str) -> str | None:
    return store.get(key).decode() if store.check([key]) else None


def _pause(until: float, problem: str) -> None:
    if problem:
        if time.monotonic() > until:
            raise TimeoutError(f"the processes did not meet in time: {problem}")
        time.sleep(_PAUSE)
