"""The search with a model whose memory ends where the test says."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

import cadenza
from cadenza.callback import Callback
from cadenza.callbacks.rates.batch_size_finder import BatchSizeFinder, find_batch_size, is_out_of_memory, largest
from cadenza.callbacks.rates.schedules import PolynomialSchedule
from cadenza.foundation.rng import seed_everything
from cadenza.main_callback import MainCallback
from cadenza.testing import tiny_data


class Memory(nn.Module):
    """A model that can take ``room`` samples and then raises what devices raise; with buffers and random numbers."""

    def __init__(self, room: int = 11, error: Exception | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3))
        self.room, self.sizes = room, []
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def forward(self, inputs: Tensor) -> Tensor:
        self.sizes.append(len(inputs))
        output: Tensor = self.layers(inputs)
        if len(inputs) > self.room:
            raise type(self.error)(*self.error.args)  # a new one, since an error that was raised holds its frames
        return output


def training(model: nn.Module, *callbacks: Callback) -> tuple[cadenza.Trainer, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = cadenza.Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")
    return trainer, optimizer


def test_it_doubles_and_bisects() -> None:
    model = Memory(room=11)
    trainer, _ = training(model)
    assert find_batch_size(trainer, tiny_data(48), start=2, steps=1) == 11
    assert model.sizes == [2, 4, 8, 16, 12, 10, 11]


@pytest.mark.parametrize("room", [1, 2, 3, 7, 8, 9, 31, 32, 33, 47, 48, 100])
@pytest.mark.parametrize("start", [1, 3, 8])
@pytest.mark.parametrize("limit", [8, 40])
def test_the_largest_size_is_found_wherever_it_is(room: int, start: int, limit: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= room

    if room < start:
        with pytest.raises(RuntimeError, match=f"not even a batch of {start} fits"):
            largest(fits, start, limit)
        return
    assert largest(fits, start, limit) == min(room, limit)
    assert len(set(tried)) == len(tried) <= 14
    doubled = largest(fits, start, limit, refine=False)
    assert doubled <= room < doubled * 2 or doubled == limit


def test_the_limit_is_the_users_or_the_data_set() -> None:
    trainer, _ = training(Memory(room=1000))
    assert find_batch_size(trainer, tiny_data(21)) == 21
    assert find_batch_size(trainer, tiny_data(21), limit=9) == 9
    assert find_batch_size(trainer, tiny_data(5), start=8) == 5


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:75] DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_every_way_in_which_memory_ends(error: Exception) -> None:
    assert is_out_of_memory(error)
    trainer, _ = training(Memory(6, error))
    assert find_batch_size(trainer, tiny_data(24), steps=1) == 6


def test_nothing_of_a_failed_trial_is_held_when_the_next_begins() -> None:
    class Watching(Memory):
        """Looks at each batch whether what earlier ones computed is gone."""

        outputs: list[weakref.ref[Tensor]] = []
        left: list[int] = []

        def forward(self, inputs: Tensor) -> Tensor:
            self.left.append(sum(ref() is not None for ref in self.outputs))
            hidden = inputs * self.layers[0].weight.sum()
            self.outputs.append(weakref.ref(hidden))
            return super().forward(hidden)

    model = Watching(5)
    trainer, _ = training(model)
    assert find_batch_size(trainer, tiny_data(24), steps=1) == 5
    assert model.sizes == [2, 4, 8, 6, 5]
    assert model.left == [0] * 5


def test_other_errors_go_on() -> None:
    trainer, _ = training(Memory(6, RuntimeError("shapes do not match")))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        find_batch_size(trainer, tiny_data(24), steps=1)
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize("begun", [False, True])
def test_everything_is_put_back_so_that_the_next_fit_is_bit_equal(begun: bool) -> None:
    fitted = []
    for searches in (False, True):
        model = Memory(11)
        trainer, optimizer = training(model)
        loader = DataLoader(tiny_data(24), batch_size=8, shuffle=True)
        seed_everything(5)
        if begun:
            trainer.fit(loader, epochs=1)
        if searches:
            before = trainer.clock.state_dict(), trainer.history.to_rows()
            assert find_batch_size(trainer, loader, steps=3) == 11
            assert (trainer.clock.state_dict(), trainer.history.to_rows()) == before
        trainer.fit(loader, epochs=2)
        fitted.append((model.state_dict(), optimizer.state_dict()["state"], torch.get_rng_state()))
    for name, value in fitted[0][0].items():
        assert torch.equal(value, fitted[1][0][name]), name
    for index, state in fitted[0][1].items():
        assert torch.equal(state["momentum_buffer"], fitted[1][1][index]["momentum_buffer"])
    assert torch.equal(fitted[0][2], fitted[1][2])


def test_the_callback_trains_with_what_it_found() -> None:
    model = Memory(11)
    finder = BatchSizeFinder(steps=1)
    trainer, _ = training(model, finder, PolynomialSchedule())
    loader = DataLoader(tiny_data(24), batch_size=2, shuffle=True)
    trainer.fit(loader, epochs=2)
    assert trainer.store["batch_size"] == finder.batch_size == 11
    assert model.sizes[-6:] == [11, 11, 2] * 2
    assert trainer.clock.steps == 6
    assert loader.batch_size == 2
    searched = len(model.sizes)
    trainer.fit(loader, epochs=1)
    assert model.sizes[searched:] == [11, 11, 2]  # without a search


def test_the_callback_leaves_the_training_as_with_that_loader_from_the_beginning() -> None:
    fitted = []
    for callbacks, size in (([BatchSizeFinder()], 2), ([], 11)):
        model = Memory(11)
        trainer, _ = training(model, *callbacks)
        seed_everything(5)
        trainer.fit(DataLoader(tiny_data(40), batch_size=size, shuffle=True), epochs=2)
        fitted.append(model.state_dict())
    for name, value in fitted[0].items():
        assert torch.equal(value, fitted[1][name]), name


def test_a_resumed_run_uses_the_size_of_its_state() -> None:
    first, second = BatchSizeFinder(steps=1), BatchSizeFinder(steps=1)
    training(Memory(11), first)[0].fit(DataLoader(tiny_data(24), batch_size=2), epochs=1)
    second.load_state_dict(first.state_dict())
    model = Memory(11)
    training(model, second)[0].fit(DataLoader(tiny_data(24), batch_size=2), epochs=1)
    assert model.sizes == [11, 11, 2]


def test_the_new_loader_is_like_the_old_one() -> None:
    def collate(samples: list[Any]) -> Any:
        return torch.stack([s[0] for s in samples]) * 0, torch.stack([s[1] for s in samples])

    order: list[int] = [3, 1, 2, 0, 5, 4, 7, 6]
    loader = DataLoader(tiny_data(8), batch_size=2, sampler=order, collate_fn=collate, drop_last=True)
    trainer, _ = training(Memory(3), BatchSizeFinder(steps=1))
    seen: list[Any] = []
    trainer.on("after_fetch")(lambda run: seen.append(run.loader))
    trainer.fit(loader, epochs=1)
    new = seen[0]
    assert new is not loader
    assert (new.batch_size, new.sampler, new.collate_fn, new.drop_last) == (3, order, collate, True)
    assert new.dataset is loader.dataset


def test_the_main_callback_and_those_given_take_part() -> None:
    class TwoSteps(Callback):
        """As an autocast or a second branch would, it changes what a step needs."""

        plays_at: list[int] = []

        def before_forward(self, run: Any) -> None:
            run.inputs = torch.cat([run.inputs, run.inputs])
            run.targets = torch.cat([run.targets, run.targets])

    class Counting(MainCallback):
        calls = 0

        def on_iter_forward(self, run: Any) -> None:
            self.calls += 1
            super().on_iter_forward(run)

    main = Counting()
    trainer, _ = training(Memory(10), main)
    assert find_batch_size(trainer, tiny_data(24)) == 10
    assert find_batch_size(trainer, tiny_data(24), callbacks=[TwoSteps()]) == 5
    assert main.calls == 0


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(tiny_data(20))


def test_a_stream_needs_a_limit() -> None:
    trainer, _ = training(Memory(7))
    with pytest.raises(ValueError, match="limit=1024"):
        find_batch_size(trainer, Stream())
    assert find_batch_size(trainer, Stream(), limit=16) == 7
    model = Memory(7)
    trainer, _ = training(model, BatchSizeFinder(limit=16))
    trainer.fit(DataLoader(Stream(), batch_size=1), epochs=1)
    assert model.sizes[-3:] == [7, 7, 6]


def test_what_cannot_be_searched_or_replaced_is_refused() -> None:
    trainer, _ = training(Memory(1), BatchSizeFinder())
    with pytest.raises(TypeError, match="needs a DataLoader, not list"):
        trainer.fit([(torch.zeros(2, 4), torch.zeros(2).long())], epochs=1)
    with pytest.raises(RuntimeError, match="not even a batch of 2 fits"):
        find_batch_size(trainer, tiny_data(8), start=2)
    with pytest.raises(ValueError, match="no samples"):
        find_batch_size(trainer, TensorDataset(torch.zeros(0, 4)))

    class Own(BatchSampler):
        pass

    loader = DataLoader(tiny_data(8), batch_sampler=Own(SequentialSampler(range(8)), 2, False))
    with pytest.raises(ValueError, match="batch sampler of its own"):
        training(Memory(8), BatchSizeFinder())[0].fit(loader, epochs=1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"start": 0}, "start must be a whole number of at least 1"),
        ({"start": 8, "limit": 4}, "limit must be a whole number of at least 8"),
        ({"steps": 0}, "steps must be a whole number of at least 1"),
    ],
)
def test_bad_arguments_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        BatchSizeFinder(**given)
    with pytest.raises(ValueError, match=says):
        find_batch_size(training(Memory())[0], tiny_data(), **given)


def test_it_behaves_as_a_callback_should() -> None:
    finder = BatchSizeFinder(limit=64)
    assert finder.explain() == "searches from 2 to 64"
    finder.load_state_dict({"batch_size": 32})
    assert finder.explain() == "batches of 32, as found before"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_real_memory_of_a_device() -> None:
    class Hungry(nn.Module):
        """Needs a mebibyte times ``2**7`` for each sample."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            room = inputs.new_zeros(len(inputs), 2**25)
            output: Tensor = self.layer(inputs) + room[:, :1]
            return output

    torch.cuda.empty_cache()
    total, gibibytes = torch.cuda.get_device_properties(0).total_memory, 4
    torch.cuda.set_per_process_memory_fraction(gibibytes * 2**30 / total)
    try:
        model = Hungry()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = cadenza.Trainer(model, optimizer, nn.CrossEntropyLoss(), device="cuda")
        first = find_batch_size(trainer, tiny_data(200))
        held = torch.cuda.memory_allocated()
        assert 16 <= first <= 32
        assert find_batch_size(trainer, tiny_data(200)) == first
        assert torch.cuda.memory_allocated() == held
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
