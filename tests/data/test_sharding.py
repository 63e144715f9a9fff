"""Every sample once in an epoch over all ranks, and also when a pass goes on with another number of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from cadenza.data import accumulation_for, prepare, unshard

from .course import seed, through_files
from .loaders import Buckets, Drifting, Noisy, Shuffling


class Indices(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Counting(IterableDataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        return iter(range(self.size))


class World:
    """Ranks in one process. Their generators stand at different places, as those of real ranks may."""

    def __init__(self, make: Any, size: int, resumable: bool = True) -> None:
        self.size = size
        self.value: Any = None
        self.feeds = [
            prepare(make(), rank=rank, world_size=size, resumable=resumable, share=self.sharer(rank))
            for rank in range(size)
        ]

    def sharer(self, rank: int) -> Any:
        def share(value: Any) -> Any:
            if rank == 0:
                self.value = value
            return self.value

        return share

    def iterate(self, seeds: int = 0) -> list[Any]:
        begun = []
        for rank, feed in enumerate(self.feeds):
            seed(1000 * seeds + rank)
            begun.append(self.begin(feed))
        return begun

    @staticmethod
    def begin(feed: Any) -> Any:
        """The first batch is asked for at once, while the generators are those of this rank."""
        batches = iter(feed)
        first = next(batches, None)
        return iter(()) if first is None else chained(first, batches)


def chained(first: Any, rest: Any) -> Any:
    yield first
    yield from rest


def samples(batch: Any) -> list[int]:
    batch = batch[0] if isinstance(batch, list) else batch
    return batch.tolist() if batch.dim() else [int(batch)]


def take(ranks: list[Any], steps: int) -> list[list[list[int]]]:
    """For each of the next steps what each rank got, which is nothing if it is at its end."""
    taken = []
    for _ in range(steps):
        got = [next(batches, None) for batches in ranks]
        taken.append([[] if batch is None else samples(batch) for batch in got])
    return taken


def flat(taken: list[list[list[int]]]) -> list[int]:
    return [index for step in taken for part in step for index in part]


def in_memory(size: int) -> Any:
    return TensorDataset(torch.arange(size))


@pytest.mark.parametrize("data", [Indices, in_memory])
@settings(deadline=None, max_examples=50)
@given(size=some.integers(1, 90), batch_size=some.integers(1, 7), ranks=some.integers(1, 5), shuffle=some.booleans())
def test_each_sample_once(data: Any, size: int, batch_size: int, ranks: int, shuffle: bool) -> None:
    world = World(lambda: DataLoader(data(size), batch_size=batch_size, shuffle=shuffle), ranks)
    steps = world.feeds[0].steps
    taken = take(world.iterate(), steps)
    assert sorted(flat(taken)) == list(range(size))
    assert all(len(part) == batch_size for step in taken[:-1] for part in step)
    lengths = [len(part) for part in taken[-1]]
    assert max(lengths) - min(lengths) <= 1
    for rank, feed in enumerate(world.feeds):
        assert len(feed) == sum(1 for step in taken if step[rank])
        assert feed.steps == steps
        told = [feed.portion(step) for step in range(steps)]
        assert told == [(len(step[rank]), sum(map(len, step))) for step in taken]
    seed(0)
    alone = torch.cat(list(DataLoader(Indices(size), batch_size=batch_size, shuffle=shuffle))).tolist()
    assert flat(taken) == alone, "the order is that of one process with rank 0's generators"


@pytest.mark.parametrize("data", [Indices, in_memory])
@settings(deadline=None, max_examples=30)
@given(
    size=some.integers(20, 120),
    batch_size=some.integers(1, 4),
    course=some.lists(some.tuples(some.sampled_from([4, 2, 1, 3]), some.integers(0, 5)), min_size=1, max_size=4),
)
def test_a_pass_goes_on_with_other_ranks(data: Any, size: int, batch_size: int, course: list[tuple[int, int]]) -> None:
    """Some steps with so many ranks, then with others, then to the end with two; and the next epoch is whole."""

    def make() -> Any:
        return DataLoader(data(size), batch_size=batch_size, shuffle=True, generator=torch.Generator().manual_seed(5))

    ledger: list[int] = []
    state: Any = None
    for ranks, steps in [*course, (2, size)]:
        world = World(make, ranks)
        for feed in world.feeds:
            if state is not None:
                feed.load_state_dict(state)
        consumed = 0 if state is None else state["consumed"]
        begun = world.iterate(seeds=ranks)
        # what World.begin asked for ahead is counted only when it is taken
        steps = min(steps, max(len(feed) for feed in world.feeds) - consumed)
        if steps < 1:
            continue
        ledger += flat(take(begun, steps))
        state = through_files(world.feeds[0].state_dict(consumed + steps))
    alone = [index for batch in make() for index in samples(batch)]
    assert ledger == alone[: len(ledger)]
    assert len(ledger) == size


def test_four_then_two_then_one() -> None:
    def make() -> Any:
        return DataLoader(Indices(103), batch_size=3, shuffle=True)

    four = World(make, 4)
    ranks = four.iterate()
    ledger = flat(take(ranks, 3))
    two = World(make, 2)
    for feed in two.feeds:
        feed.load_state_dict(through_files(four.feeds[0].state_dict(3)))
    ledger += flat(take(two.iterate(7), 4))
    one = World(make, 1)
    one.feeds[0].load_state_dict(through_files(two.feeds[1].state_dict(7)))
    ledger += flat(take(one.iterate(8), 100))
    assert sorted(ledger) == list(range(103))


def test_an_empty_part_at_the_end() -> None:
    world = World(lambda: DataLoader(Indices(9), batch_size=2), 4)
    assert [len(feed) for feed in world.feeds] == [2, 1, 1, 1]
    assert [feed.portion(1) for feed in world.feeds] == [(1, 1), (0, 1), (0, 1), (0, 1)]
    assert take(world.iterate(), 2)[1] == [[8], [], [], []]


def test_dropping_the_last_global_batch() -> None:
    world = World(lambda: DataLoader(Indices(23), batch_size=2, drop_last=True), 4)
    assert {len(feed) for feed in world.feeds} == {2}
    assert flat(take(world.iterate(), 3)) == list(range(16))


@pytest.mark.parametrize("sampler", [Shuffling(), None])
def test_samplers_of_ones_own(sampler: Any) -> None:
    def make() -> Any:
        if sampler is None:
            return DataLoader(Indices(23), batch_sampler=Buckets())
        return DataLoader(Indices(23), batch_size=2, sampler=sampler)

    world = World(make, 3)
    assert sorted(flat(take(world.iterate(), 20))) == list(range(23))


def test_a_sampler_that_draws_as_it_goes_is_refused() -> None:
    world = World(lambda: DataLoader(Indices(23), batch_size=2, sampler=Drifting()), 2)
    with pytest.raises(TypeError, match="Drifting draws from the generators"):
        take(world.iterate(), 5)


def test_a_distributed_sampler_is_left_alone() -> None:
    data = Indices(10)
    for rank in range(2):
        loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, rank, seed=3))
        feed = prepare(loader, rank=rank, world_size=2, resumable=True)
        feed.set_epoch(4)
        given_by = [batch.tolist() for batch in feed]
        loader.sampler.set_epoch(4)  # type: ignore[union-attr]
        assert given_by == [batch.tolist() for batch in loader]
        state = feed.state_dict(3)
        other = prepare(
            DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 4, rank)),
            rank=rank,
            world_size=4,
            resumable=True,
        )
        other.load_state_dict(state)
        with pytest.raises(ValueError, match=r"saved with 2 process.*means nothing to 4"):
            iter(other)


@pytest.mark.parametrize(
    "make", [lambda: DataLoader(Counting(22), batch_size=2), lambda: list(torch.arange(22).split(2))]
)
def test_streams_and_lists_take_turns(make: Any) -> None:
    world = World(make, 3)
    ranks = [iter(feed) for feed in world.feeds]
    ledger = take(ranks, 2)
    assert ledger == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
    fewer = World(make, 2)
    for feed in fewer.feeds:
        feed.load_state_dict(through_files(world.feeds[2].state_dict(2)))
    rest = take([iter(feed) for feed in fewer.feeds], 4)
    assert flat(rest) == list(range(12, 22))
    assert rest[2] == [[20, 21], []]


def test_a_data_set_that_divides_itself() -> None:
    class Divided(Counting):
        divides_over_ranks = True

    feed = prepare(DataLoader(Divided(6), batch_size=2), rank=1, world_size=3, resumable=True)
    assert [batch.tolist() for batch in feed] == [[0, 1], [2, 3], [4, 5]]


def test_noise_of_workers_is_only_for_the_same_ranks() -> None:
    """With other ranks the order goes on; the workers' noise begins anew, since it belonged to other batches."""
    feeds = [
        prepare(
            DataLoader(Noisy(), batch_size=2, num_workers=1),
            resumable=True,
            rank=rank,
            world_size=2,
            share=lambda value: value,
        )
        for rank in range(2)
    ]
    seed()
    batches = [iter(feed) for feed in feeds]
    first = [next(one)["index"].tolist() for one in batches]
    state = through_files(feeds[0].state_dict(1))
    alone = prepare(DataLoader(Noisy(), batch_size=2, num_workers=1), resumable=True)
    alone.load_state_dict(state)
    rest = [batch["index"].tolist() for batch in alone]
    assert [index for batch in first + rest for index in batch] == list(range(23))
    for feed in feeds:
        feed.close()


def test_unshard_gives_the_order_of_the_data_set() -> None:
    world = World(lambda: DataLoader(Indices(21), batch_size=2), 4, resumable=False)
    parts = [list(feed) for feed in world.feeds]
    assert torch.cat(unshard(parts)).tolist() == list(range(21))


def test_accumulation_keeps_the_global_batch() -> None:
    assert accumulation_for(saved=4 * 8, batch_size=8, world_size=4) == 1
    assert accumulation_for(saved=4 * 8, batch_size=8, world_size=2) == 2
    assert accumulation_for(saved=4 * 8 * 3, batch_size=8, world_size=1) == 12
    with pytest.raises(ValueError, match=r"sees 32 samples; 3 process\(es\) with batch size 8 see 24.*another number"):
        accumulation_for(saved=32, batch_size=8, world_size=3)
    with pytest.raises(ValueError, match=r"batch sizes that do: 1, 2, 4, 8, 16"):
        accumulation_for(saved=32, batch_size=5, world_size=2)


def test_ranks_without_a_way_to_share_are_refused() -> None:
    feed = prepare(DataLoader(Indices(8), shuffle=True), rank=0, world_size=2)
    with pytest.raises(RuntimeError, match="give prepare a function share"):
        next(iter(feed))


def test_the_generators_of_a_rank_are_its_own_again() -> None:
    """Drawing the order with rank 0's generators leaves those of the others where they were."""
    world = World(lambda: DataLoader(Indices(8), shuffle=True, batch_size=2), 2)
    seed(0)
    next(iter(world.feeds[0]))
    seed(5)
    batches = iter(world.feeds[1])  # draws a seed for workers, as DataLoader does
    before = torch.get_rng_state(), random.getstate()
    next(batches)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
