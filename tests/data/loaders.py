"""Data sets, samplers and loaders of every kind; at the top of a module, so that spawned workers find them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

N = 23


class Noisy(Dataset[Any]):
    """Draws from all generators at every read."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        who = -1 if info is None else info.id
        assert info is None or info.dataset is self
        return {
            "index": index,
            "noise": torch.rand(2),
            "python": random.random(),
            "numpy": float(numpy.random.rand()),
            "worker": who,
            "seed": 0 if info is None else info.seed,
        }


class Batched(Noisy):
    """Reads a whole batch at once, and not an empty one."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert indices
        return [self[index] for index in indices]


class WithOwn(Dataset[Any]):
    """Holds generators of its own."""

    def __init__(self) -> None:
        self.torch = torch.Generator().manual_seed(3)
        self.python = random.Random(4)
        self.numpy = numpy.random.default_rng(5)
        self.legacy = numpy.random.RandomState(6)

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        own = torch.rand(1, generator=self.torch)
        return index, own, self.python.random(), self.numpy.random(), self.legacy.rand()


class Shuffling:
    """A sampler of one's own that draws from Python's generator at its beginning."""

    def __iter__(self) -> Iterator[int]:
        indices = list(range(N))
        random.shuffle(indices)
        return iter(indices)

    def __len__(self) -> int:
        return N


class Holding:
    """A sampler of one's own that draws as it goes, from a generator that it holds."""

    def __init__(self) -> None:
        self.draws = random.Random(7)

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield self.draws.randrange(N)

    def __len__(self) -> int:
        return N


class Keeping(Holding):
    """Keeps its own position: draws from Python's generator as it goes."""

    def __init__(self) -> None:
        self.at = 0
        self.bag: list[int] = []

    def __iter__(self) -> Iterator[int]:
        if not self.bag:
            self.bag = random.sample(range(N), N)
            self.at = 0
        while self.at < N:
            self.at += 1
            yield self.bag[self.at - 1]
        self.bag = []

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "bag": self.bag}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.bag = state["at"], list(state["bag"])


class Buckets:
    """A batch sampler of one's own, with batches of different sizes, drawn at once when it is iterated."""

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(N).tolist()
        batches = [order[0:1], order[1:4], order[4:10], order[10:12], order[12:20], order[20:]]
        random.shuffle(batches)
        return iter(batches)

    def __len__(self) -> int:
        return 6


class Drifting:
    """Draws from Python's own generator as it goes: cannot be resumed."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(N):
            yield random.randrange(N)

    def __len__(self) -> int:
        return N


def seeding(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, Noisy)
    assert info.id == worker
    random.seed(info.seed + 1)


def drawing(samples: list[Any]) -> Any:
    """A collate function that draws, as those that mask tokens do."""
    return [sample["index"] for sample in samples], torch.rand(2), [sample["python"] for sample in samples]


def own_generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def build(kind: str, **how: Any) -> Any:
    """A loader of ``kind`` over noisy data."""
    data, batch = Noisy(), {"batch_size": 4}
    loaders = {
        "sequential": lambda: DataLoader(data, **batch, **how),
        "shuffled": lambda: DataLoader(data, shuffle=True, **batch, **how),
        "generator": lambda: DataLoader(data, shuffle=True, generator=own_generator(), **batch, **how),
        "drop_last": lambda: DataLoader(data, shuffle=True, drop_last=True, **batch, **how),
        "unbatched": lambda: DataLoader(data, batch_size=None, shuffle=True, **how),
        "weighted": lambda: DataLoader(
            data, sampler=WeightedRandomSampler([1.0, 2.0] * 11 + [3.0], 17), **batch, **how
        ),
        "subset": lambda: DataLoader(data, sampler=SubsetRandomSampler(range(3, 20)), **batch, **how),
        "replacement": lambda: DataLoader(
            data,
            sampler=RandomSampler(data, replacement=True, num_samples=70, generator=own_generator()),
            **batch,
            **how,
        ),
        "longer": lambda: DataLoader(data, sampler=RandomSampler(data, num_samples=50), **batch, **how),
        "distributed": lambda: DataLoader(data, sampler=DistributedSampler(data, 2, 1), **batch, **how),
        "shuffling": lambda: DataLoader(data, sampler=Shuffling(), **batch, **how),
        "holding": lambda: DataLoader(data, sampler=Holding(), **batch, **how),
        "keeping": lambda: DataLoader(data, sampler=Keeping(), **batch, **how),
        "buckets": lambda: DataLoader(data, batch_sampler=Buckets(), **how),
        "batch_sampler": lambda: DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 5, True), **how),
        "shuffled batch_sampler": lambda: DataLoader(
            data, batch_sampler=BatchSampler(RandomSampler(data), 5, False), **how
        ),
        "batched": lambda: DataLoader(Batched(), shuffle=True, **batch, **how),
        "collate": lambda: DataLoader(data, shuffle=True, collate_fn=drawing, **batch, **how),
        "own": lambda: DataLoader(WithOwn(), shuffle=True, **batch, **how),
    }
    return loaders[kind]()


KINDS = [
    "sequential",
    "shuffled",
    "generator",
    "drop_last",
    "unbatched",
    "weighted",
    "subset",
    "replacement",
    "longer",
    "distributed",
    "shuffling",
    "holding",
    "keeping",
    "buckets",
    "batch_sampler",
    "shuffled batch_sampler",
    "batched",
    "collate",
    "own",
]


class Stream(IterableDataset[Any]):
    """Each worker gives its part; draws noise, and from a shuffle buffer that it draws from at its beginning."""

    size = N

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, self.size, step):
            yield index, -1 if info is None else info.id, torch.rand(1), random.random()


class Uneven(Stream):
    """The first worker has more than the others."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        for index in range(17 if info.id == 0 else 3):
            yield index, info.id, torch.rand(1)


class Buffered(Stream):
    """Shuffles as it goes, from the worker's generators."""

    def __iter__(self) -> Iterator[Any]:
        buffer: list[Any] = []
        for sample in super().__iter__():
            buffer.append(sample)
            if len(buffer) > 5:
                yield buffer.pop(random.randrange(len(buffer)))
        yield from buffer


class Keeper(Stream):
    """Says where it stands, and what it shuffled; counts what it reads."""

    def __init__(self) -> None:
        self.at = 0
        self.order: list[int] = []
        self.reads = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        if not self.order:
            self.order = random.sample(range(first, N, step), len(range(first, N, step)))
            self.at = 0
        while self.at < len(self.order):
            self.at += 1
            self.reads += 1
            yield self.order[self.at - 1], random.random()
        self.order = []

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "order": list(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.order = state["at"], list(state["order"])


class KeeperIterator:
    """The iterator keeps the position, not the data set."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> KeeperIterator:
        return self

    def __next__(self) -> Any:
        if self.at >= N:
            raise StopIteration
        self.at += 1
        return self.at - 1, torch.rand(1)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class ByIterator(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return KeeperIterator()


STREAMS = {"stream": Stream, "uneven": Uneven, "buffered": Buffered, "keeper": Keeper, "iterator": ByIterator}


def build_stream(kind: str, batch_size: int | None = 4, **how: Any) -> Any:
    return DataLoader(STREAMS[kind](), batch_size=batch_size, **how)
