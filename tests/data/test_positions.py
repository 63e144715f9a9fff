"""Places that were read past, plain iterables, loaders with a state of their own, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from cadenza.data import prepare

from .course import generators, interrupted, plain, seed, set_generators, straight, through_files, train_on
from .loaders import Buckets, Drifting, Noisy, Stream, build, build_stream

# Read ahead ----------------------------------------------------------------------------------------------------------


def ahead_and_cut(make: Any, cut: int | None, **how: Any) -> list[Any]:
    """A loop that always reads one batch before it trains on the one it has; perhaps cut and resumed once."""
    seed()
    feed = prepare(make(), resumable=True, **how)
    seen: list[Any] = []
    for epoch in range(2):
        batches = iter(feed)
        batch, taken = next(batches, None), 1
        while batch is not None:
            feed.bookmark()
            following = next(batches, None)
            train_on(batch)
            seen.append(plain(batch))
            if epoch == 1 and taken == cut:
                state, kept = through_files(feed.state_dict(taken)), generators()
                feed.close()
                seed(77)
                feed = prepare(make(), resumable=True, **how)
                feed.load_state_dict(state)
                set_generators(kept)
                batches = iter(feed)
                assert generators() == kept
                # what was read ahead is read again, with the draws of then
                again = through_files(feed.state_dict(taken))
                assert again["ahead"] == state["ahead"] == 1
                following = next(batches, None)
            batch, taken = following, taken + 1
        seen.append(generators())
        feed.end()
    feed.close()
    return seen


@pytest.mark.parametrize("cut", [1, 3, 4])
@pytest.mark.parametrize(
    "make",
    [
        lambda: build("shuffled"),
        lambda: build("replacement"),
        lambda: build("keeping"),
        lambda: build("own"),
        lambda: build("shuffled", num_workers=2),
        lambda: build_stream("stream"),
        lambda: build_stream("keeper"),
        lambda: Reiterable(),
        lambda: Stateful(),
    ],
)
def test_a_batch_that_was_read_but_not_consumed_comes_again(make: Any, cut: int) -> None:
    assert ahead_and_cut(make, cut) == ahead_and_cut(make, None)


def test_a_place_that_was_not_kept_is_an_error() -> None:
    feed = prepare([1, 2, 3], resumable=True)
    batches = iter(feed)
    next(batches), next(batches)
    with pytest.raises(ValueError, match=r"2 batches were read and 1 consumed.*call bookmark"):
        feed.state_dict(1)


# Plain iterables -----------------------------------------------------------------------------------------------------


class Reiterable:
    """Shuffles when it is iterated, from a generator that it holds; makes noise as it goes."""

    def __init__(self) -> None:
        self.draws = random.Random(5)

    def __iter__(self) -> Iterator[Any]:
        order = self.draws.sample(range(7), 7)
        return ((index, torch.rand(1)) for index in order)


class Stateful:
    """A loader that keeps its own position."""

    def __init__(self) -> None:
        self.at, self.order = 0, [0]

    def __iter__(self) -> Iterator[Any]:
        if self.at == 0:
            self.order = random.sample(range(6), 6)
        while self.at < 6:
            self.at += 1
            yield self.order[self.at - 1], torch.rand(1)
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.order = state["at"], state["order"]


class OwnIteration(DataLoader[Any]):
    """A loader that iterates in its own way."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch, "more"


ITERABLES = [
    lambda: [torch.ones(1) * number for number in range(5)],
    Reiterable,
    Stateful,
    lambda: OwnIteration(Noisy(), batch_size=4, shuffle=True),
]


@pytest.mark.parametrize("cuts", [[0], [1], [2, 3], [-1], [1, -1, 7]], ids=str)
@pytest.mark.parametrize("make", ITERABLES)
def test_a_pass_over_any_iterable_goes_on_where_it_was_cut(make: Any, cuts: list[int]) -> None:
    assert interrupted(make, cuts) == straight(make)


def test_a_list_is_not_read_again() -> None:
    class Batches(list[int]):
        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("a batch was read")

    feed = prepare(Batches([1, 2, 3]), resumable=True)
    next(iter(feed))
    again = prepare(Batches([1, 2, 3]), resumable=True)
    again.load_state_dict(feed.state_dict(1))
    assert list(again) == [2, 3]


def test_a_generator_is_refused() -> None:
    feed = prepare((number for number in range(4)), resumable=True)
    batches = iter(feed)
    assert next(batches) == 0
    again = prepare((number for number in range(4)), resumable=True)
    again.load_state_dict(feed.state_dict(1))
    with pytest.raises(TypeError, match=r"a generator, can be read only once.*Give a DataLoader, a list"):
        iter(again)


# What does not fit ---------------------------------------------------------------------------------------------------


def position_of(make: Any, batches: int = 2) -> dict[str, Any]:
    feed = prepare(make(), resumable=True)
    iterator = iter(feed)
    for _ in range(batches):
        next(iterator)
    return feed.state_dict(batches)


def test_other_data_are_refused() -> None:
    state = position_of(lambda: build("shuffled"))
    other = prepare(DataLoader(Noisy(), batch_sampler=Buckets()), resumable=True)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="counts samples of 23, this loader has 6 batches"):
        iter(other)


def test_another_kind_of_loader_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is of a map-style loader and this loader is a iterable"):
        prepare([1], resumable=True).load_state_dict(position_of(lambda: build("shuffled")))


def test_a_newer_position_is_refused() -> None:
    state = {**position_of(lambda: [1, 2, 3]), "version": 99}
    with pytest.raises(ValueError, match=r"version 99, newer"):
        prepare([1, 2, 3], resumable=True).load_state_dict(state)


def test_a_sampler_that_draws_as_it_goes_cannot_be_saved() -> None:
    def make() -> Any:
        return DataLoader(Noisy(), batch_size=2, sampler=Drifting())

    with pytest.raises(TypeError, match=r"Drifting draws from the generators.*state_dict and load_state_dict"):
        position_of(make, 4)


def test_a_sampler_that_gives_other_indices_is_refused() -> None:
    class Fickle:
        def __init__(self, first: int) -> None:
            self.first = first

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.first, 23))

        def __len__(self) -> int:
            return 20

    state = position_of(lambda: DataLoader(Noisy(), batch_size=2, sampler=Fickle(3)))
    other = prepare(DataLoader(Noisy(), batch_size=2, sampler=Fickle(2)), resumable=True)
    other.load_state_dict(state)
    with pytest.raises(ValueError, match="Fickle gave other indices than in the saved run"):
        iter(other)


def test_batches_in_any_order_are_refused() -> None:
    with pytest.raises(ValueError, match="in_order=False"):
        prepare(DataLoader(Noisy(), num_workers=2, in_order=False), resumable=True)


class Clocked(Stream):
    """Draws from where nobody can follow."""

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            random.seed()
            yield sample[0]


def test_a_stream_that_cannot_be_read_again_is_refused() -> None:
    def make() -> Any:
        return DataLoader(Clocked(), batch_size=2, num_workers=1)

    again = prepare(make(), resumable=True)
    again.load_state_dict(position_of(make))
    with pytest.raises(RuntimeError, match=r"Clocked was read again .* drew other random"):
        next(iter(again))


# Without reading -----------------------------------------------------------------------------------------------------


class Vast(Dataset[int]):
    """Ten million samples, and how many were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_position_in_ten_million_samples_is_found_without_reading(shuffle: bool) -> None:
    batches = 97_000

    def make() -> Any:
        return DataLoader(Vast(), batch_size=100, shuffle=shuffle, generator=torch.Generator().manual_seed(1))

    feed = prepare(make(), resumable=True)
    next(iter(feed))
    state = feed.state_dict(1)
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(state)) < 100_000
    state["order"]["cursor"], state["consumed"] = batches * 100, batches  # as if the pass stood there
    loader = make()
    again = prepare(loader, resumable=True)
    again.load_state_dict(state)
    resumed = iter(again)
    assert loader.dataset.read == []
    indices = next(resumed).tolist()
    assert loader.dataset.read == indices
    if shuffle:
        order = torch.randperm(10_000_000, generator=with_base_seed())
        assert indices == order[batches * 100 : batches * 100 + 100].tolist()
    else:
        assert indices == list(range(batches * 100, batches * 100 + 100))
    assert len(again) == 100_000


def with_base_seed() -> torch.Generator:
    """DataLoader draws a seed for its workers from the generator before the sampler draws."""
    generator = torch.Generator().manual_seed(1)
    torch.empty((), dtype=torch.int64).random_(generator=generator)
    return generator


def tensors_in(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    return [tensor for part in parts for tensor in tensors_in(part)]


# Workers -------------------------------------------------------------------------------------------------------------


def test_the_order_does_not_depend_on_the_number_of_workers() -> None:
    orders = []
    for workers in (0, 1, 2):
        loader = DataLoader(
            Noisy(), batch_size=4, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(2)
        )
        orders.append([batch["index"].tolist() for batch in prepare(loader, resumable=True)])
    assert orders[0] == orders[1] == orders[2]


def test_a_pass_goes_on_with_other_workers() -> None:
    """The order is kept; the noise is not, since it belongs to each worker."""
    feed = prepare(build("shuffled", num_workers=2), resumable=True)
    seed()
    batches = iter(feed)
    ledger = next(batches)["index"].tolist()
    again = prepare(build("shuffled"), resumable=True)
    again.load_state_dict(feed.state_dict(1))
    for batch in again:
        ledger += batch["index"].tolist()
    assert sorted(ledger) == list(range(23))
    feed.close()


def test_a_pass_that_is_left_early() -> None:
    """Workers that live on have read ahead: the next epoch, and one after a resume in between, see the same."""

    def run(cut: bool) -> list[Any]:
        def make() -> Any:
            return build("shuffled", num_workers=1, persistent_workers=True)

        seed()
        feed = prepare(make(), resumable=True)
        batches = iter(feed)
        next(batches)
        del batches
        feed.end()
        if cut:
            state, kept = through_files(feed.state_dict(None)), generators()
            feed.close()
            feed = prepare(make(), resumable=True)
            feed.load_state_dict(state)
            set_generators(kept)
        seen = [plain(batch) for batch in feed]
        feed.close()
        return seen

    by_hand_loader = build("shuffled", num_workers=1, persistent_workers=True)
    seed()
    next(iter(by_hand_loader))
    by_hand = [plain(batch) for batch in by_hand_loader]
    assert run(cut=False) == by_hand
    assert run(cut=True) == by_hand


@pytest.mark.long
def test_a_pass_with_spawned_workers_goes_on_where_it_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))  # where they find this package

    def make() -> Any:
        return build("shuffled", num_workers=1, multiprocessing_context="spawn")

    whole = straight(make, epochs=1)
    assert interrupted(make, [2], epochs=1) == whole


def test_pinned_memory_is_asked_of_parcels_too() -> None:
    """Without a CUDA device nothing is pinned; the loader must still come through."""

    def make() -> Any:
        return build("shuffled", num_workers=1, pin_memory=True)

    assert interrupted(make, [2], epochs=1) == straight(make, epochs=1)


def test_a_place_cannot_be_asked_for_if_that_was_not_wanted() -> None:
    feed = prepare(DataLoader(TensorDataset(torch.arange(4))))
    next(iter(feed))
    with pytest.raises(RuntimeError, match="prepare it with resumable=True"):
        feed.state_dict(1)
