"""What runs in the worker processes of a loader: each batch comes with where the worker's generators stand after it."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from cadenza.foundation.generators import RngStates, capture, generators_in, put_back, same
from cadenza.foundation.torch_private import pin_memory


class Nothing:
    """A task that asks a worker for nothing, so that the next task goes to the worker after it."""

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING = Nothing()


@dataclass(slots=True)
class Parcel:
    """A batch on its way from a worker, and how the worker stands after it; ``None`` where that has not changed."""

    batch: Any
    worker: int
    draws: Any = None
    began: Any = None
    state: Any = None
    over: bool = False

    def pin_memory(self) -> Parcel:
        """Called by the pinning thread of DataLoader, which does not look into objects."""
        self.batch = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return self


@dataclass(slots=True)
class Place:
    """Where one worker stands in a pass over a stream; of a map-style data set only ``draws`` matters."""

    batches: int = 0
    draws: Any = None
    """The worker's generators after its last batch, and when its part of the pass began."""
    began: Any = None
    state: Any = None
    """What the data set says of its position, if it does."""
    over: bool = False
    """Its last batch was a short one: it has come to the end of its data."""


@dataclass
class Desk:
    """Shared by the three things that DataLoader calls in a worker: the data set, the collate and the init function."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    init_fn: Callable[[int], None] | None
    places: dict[int, Place] = field(default_factory=dict)
    own: list[Any] = field(default_factory=list)
    last: RngStates | None = None
    owner: int = field(default_factory=os.getpid)
    """The process that trains."""

    def begin(self, worker: int) -> None:
        outlive_warnings()
        end_with(self.owner)
        info = get_worker_info()
        # the user's functions look for their own data set there, to give each worker its part of it
        object.__setattr__(info, "dataset", self.dataset)
        if self.init_fn is not None:
            self.init_fn(worker)
        self.own = generators_in(self.dataset, self.collate_fn)
        place = self.places.get(worker)
        if place is not None and place.draws is not None and not place.batches:
            put_back(place.draws, self.own)

    def parcel(self, batch: Any) -> Parcel:
        info = get_worker_info()
        assert info is not None
        draws = capture(self.own)
        if self.last is not None and same(self.last, draws) and not self.own:
            return Parcel(batch, info.id)
        self.last = draws
        return Parcel(batch, info.id, in_bytes(draws))


_WARNINGS = {
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)
}  # those by which a run is told to end


_started: weakref.WeakSet[Any] = weakref.WeakSet()
"""The worker processes that this process has started."""


@contextmanager
def starting_workers(loader: DataLoader[Any]) -> Iterator[None]:
    """Held while ``loader`` starts its worker processes.

    The signals that end a run are blocked while workers are forked: one that came before a worker has called
    ``outlive_warnings`` would end it. Workers inherit the block and end it there. Since they pass over the first
    SIGTERM, and an interpreter that ends sends just one to its children and then waits for them, those that live are
    killed before. Those that were started when an exception came belong to no loader, and are killed too.
    """
    if not loader.num_workers:
        yield
        return
    others = set(multiprocessing.active_children())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WARNINGS) if _method(loader) == "fork" else None
    try:
        yield
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        raise
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _started.update(set(multiprocessing.active_children()) - others)
        _kill_started_at_exit(os.getpid())


@functools.cache
def _kill_started_at_exit(process: int) -> None:
    """Once in each process: a child that is forked forgets what its parent wanted done at the end."""
    Finalize(None, _kill_started, exitpriority=0)


def _kill_started() -> None:
    for worker in multiprocessing.active_children():
        if worker in _started:
            worker.kill()


def _method(loader: DataLoader[Any]) -> str:
    context = loader.multiprocessing_context or multiprocessing
    return str(context.get_start_method())


def outlive_warnings() -> None:
    """A signal to the whole process group warns the main process, which saves and then ends its workers itself. So they
    pass over the first; a second SIGTERM, as by an interpreter that ends without them, ends them."""

    def first(number: int, frame: Any) -> None:
        signal.signal(number, lambda *_: os._exit(0))

    for number in _WARNINGS:
        signal.signal(number, first if number == signal.SIGTERM else signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WARNINGS)


def end_with(owner: int) -> None:
    """Ends this process soon after ``owner`` is gone. DataLoader's own watch looks at the parent, which is another
    process if a server forks the workers, and nobody's if the owner was killed while they began."""
    if os.name != "posix":  # elsewhere asking whether a process lives may end it
        return

    def watch() -> None:
        while True:
            time.sleep(1.0)
            try:
                os.kill(owner, 0)
            except (ProcessLookupError, PermissionError):  # gone, or its number is that of somebody else's process
                os._exit(1)

    threading.Thread(target=watch, name="cadenza owner", daemon=True).start()


def in_bytes(draws: RngStates) -> tuple[Any, ...]:
    """For the way to the main process: a tensor would take shared memory for every batch."""
    torch_state = draws.rng["torch"]
    words = torch_state.numpy().tobytes() if "numpy" in sys.modules else bytes(torch_state.tolist())
    return {**draws.rng, "torch": words}, [_plain(state) for state in draws.own]


def as_draws(sent: Any) -> RngStates | None:
    """What a worker sent; what was loaded from a checkpoint is as it should be already."""
    if sent is None or isinstance(sent, RngStates):
        return sent
    rng, own = sent
    rng = {**rng, "torch": _tensor(rng["torch"])}
    return RngStates(rng, tuple(_tensor(one) if isinstance(one, bytes) else one for one in own))


def _plain(state: Any) -> Any:
    return bytes(state.tolist()) if isinstance(state, torch.Tensor) else state


def _tensor(words: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(words), dtype=torch.uint8)


class Begin:
    """The ``worker_init_fn`` of a watched loader."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def __call__(self, worker: int) -> None:
        # a forked worker must not collect what its parent left lying: the end of a process group waits for threads
        # that are not here, or falls over them
        gc.freeze()
        self.desk.begin(worker)


class Items:
    """A map-style data set in a worker: reads as the user's own does, and knows a task that asks for nothing."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def __getitem__(self, index: Any) -> Any:
        return NOTHING if index is NOTHING else self.desk.dataset[index]

    def __getitems__(self, indices: Any) -> Any:
        if indices is NOTHING:
            return NOTHING
        dataset = self.desk.dataset
        if getattr(dataset, "__getitems__", None):
            return dataset.__getitems__(indices)
        return [dataset[index] for index in indices]


class Collate:
    """The ``collate_fn`` of a watched loader over a map-style data set."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def __call__(self, samples: Any) -> Parcel:
        if samples is NOTHING:
            return Parcel(NOTHING, -1)
        return self.desk.parcel(self.desk.collate_fn(samples))
