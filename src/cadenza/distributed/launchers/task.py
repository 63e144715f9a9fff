"""A function on its way into the workers of another engine, what each of them does with it, and how it comes back."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from cadenza.distributed.launchers.local import WorkerDied, pack, raise_told
from cadenza.distributed.launchers.result_socket import Address, PostOffice
from cadenza.distributed.launchers.worker import call, told
from cadenza.distributed.world import World

_PATIENCE = 2.0
"""Seconds by which one who only has news of another's error ends later, so that the error itself is delivered."""


@dataclass(frozen=True)
class Errand:
    """What a worker needs: the packed function, where it was called, and where the answer goes.

    ``until`` is the moment at which it gives up, and ``timeout`` how many seconds that is after the launch.
    """

    work: bytes
    address: Address
    environment: dict[str, str]
    folder: str
    timeout: float | None
    until: float | None

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        post: PostOffice,
        environment: Mapping[str, str] | None,
        timeout: float | None,
    ) -> Errand:
        until = None if timeout is None else time.time() + timeout
        return cls(pack(fn, args), post.address, dict(environment or {}), os.getcwd(), timeout, until)

    def run(self, rank: int) -> None:
        """Calls the function in a worker, and delivers the result or the error, which is raised."""
        done = threading.Event()
        again = self.address.begin(rank, lambda: None if done.is_set() else os._exit(1)) - 1
        self._watch(rank, done)
        try:
            result = self._call(again)
        except BaseException as error:
            found = told(error)
            self.address.send(rank, found)
            if found["news"]:
                time.sleep(_PATIENCE)
            raise
        finally:
            done.set()
        self.address.send(rank, {"result": result})

    def _call(self, again: int) -> bytes:
        search, work = pickle.loads(self.work)
        sys.path += [place for place in search if place not in sys.path]
        os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "0")
        if again:  # as under torchrun, a function can know that it was begun before
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(again)
        os.environ.update(self.environment)
        if os.path.isdir(self.folder):  # on another machine it need not exist
            os.chdir(self.folder)
        return call(work)

    def _watch(self, rank: int, done: threading.Event) -> None:
        """Ends this process at the moment at which the launch has taken too long."""

        def wait() -> None:
            if self.until is not None and not done.wait(max(0.0, self.until - time.time())):
                late = TimeoutError(f"the process of rank {rank} has not ended after {self.timeout:g} seconds")
                try:
                    self.address.send(rank, told(late))
                finally:
                    os._exit(1)

        if self.until is not None:
            threading.Thread(target=wait, name="cadenza time limit", daemon=True).start()


def carry_out(packed: bytes) -> None:
    """What a worker does that knows its rank by its environment."""
    pickle.loads(packed).run(World.detect().rank)


def collect(post: PostOffice, workers: int, wanted: str) -> Any:
    """What rank 0 returned, or what all did; what is missing is an error."""
    missing = [rank for rank in range(workers) if "result" not in post.found.get(rank, {})]
    if missing:
        raise WorkerDied(f"the processes of ranks {', '.join(map(str, missing))} of {workers} left no result behind")
    if wanted == "all":
        return [pickle.loads(post.found[rank]["result"]) for rank in range(workers)]
    return pickle.loads(post.found[0]["result"])


def raise_first(post: PostOffice, workers: int, engine: BaseException) -> NoReturn:
    """Raises the first error of a worker, as ``launch`` does on one machine. What the engine said is its context."""
    errors = {rank: found for rank, found in sorted(post.found.items()) if "error" in found}
    own = sorted((rank for rank in errors if not errors[rank]["news"]), key=lambda rank: errors[rank]["when"])
    if own:
        raise_told(own[0], errors[own[0]])
    silent = [rank for rank in range(workers) if rank not in post.found]
    if errors and silent:
        who = ", ".join(map(str, silent))
        raise WorkerDied(f"the process of rank {who} of {workers} was ended, and left no error behind") from engine
    if errors:
        rank = next(iter(errors))
        raise_told(rank, errors[rank])
    raise WorkerDied(f"the engine ended without a word of the workers: {engine}") from engine
