"""Batches that a tape holds without a copy: when it does, and that a replay is none the worse for it."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks import NaNGuard
from cadenza.replay.borrowed_batches import Lending, Loan

pytestmark = pytest.mark.filterwarnings("ignore:.*The run is stopped:UserWarning")

BATCHES, BAD = 40, 30


def make_data():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 4, generator=generator), torch.arange(6) % 3) for _ in range(BATCHES)]


def make_trainer(*callbacks):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.25), nn.Linear(8, 3))
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    return Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=list(callbacks), device="cpu")


class Poison(Callback):
    """From one batch on the inputs are infinite, in a tensor of their own or in the batch itself."""

    def __init__(self, in_place: bool):
        self.in_place = in_place

    def before_train_iter(self, run):
        if run.batch_idx == BAD and self.in_place:
            run.inputs.fill_(math.inf)
        elif run.batch_idx == BAD:
            run.inputs = run.inputs * math.inf


class Noise(Callback):
    """Changes every batch in place, past the version of its tensor if asked to."""

    def __init__(self, how):
        self.how = how

    def before_train_iter(self, run):
        self.how(run.inputs)


class Held(Callback):
    """Which batches the tape holds without a copy."""

    def __init__(self, guard, data):
        self.guard, self.data, self.held = guard, data, []

    def after_train_iter(self, run):
        kept = self.guard._tape.batches[-1]["batch"] if self.guard._tape.batches else None
        self.held.append(kept is not None and kept[0].data_ptr() == self.data[run.batch_idx][0].data_ptr())


def hit(tmp_path, *others, data=None):
    """A fit in which one batch is bad; the guard, and who held what."""
    data = make_data() if data is None else data
    guard = NaNGuard("stop", check_every=1, folder=tmp_path)
    trainer = make_trainer(guard, *others, held := Held(guard, data))
    trainer.fit(data, epochs=1)
    assert guard.hits == 1
    return guard, held.held


def test_after_the_first_ones_batches_are_held_and_played_again_to_the_bit(tmp_path):
    data = make_data()
    guard, held = hit(tmp_path, Poison(in_place=False), data=data)
    assert held[:10] == [False] * 10
    assert held[20:] == [True] * len(held[20:])
    found = make_trainer(Poison(in_place=False)).replay(guard.file)
    assert (found.batch_idx, found.exact) == (BAD, True)
    assert torch.equal(found.batch[0], data[BAD][0])  # as it was fetched


def test_a_view_of_a_large_tensor_is_written_alone(tmp_path):
    large = torch.randn(BATCHES * 6 + 100_000, 4)
    data = [(large[6 * i : 6 * i + 6], torch.arange(6) % 3) for i in range(BATCHES)]
    guard, held = hit(tmp_path, Poison(in_place=False), data=data)
    assert held[-1]
    assert guard.file.stat().st_size < 500_000


@pytest.mark.parametrize(
    "change",
    [lambda x: x.add_(0.5), lambda x: x.data.add_(0.5), lambda x: numpy.add(x.numpy(), 0.5, out=x.numpy())],
    ids=["counted", "past the version", "by NumPy"],
)
def test_batches_that_are_changed_in_place_are_copied(tmp_path, change):
    guard, held = hit(tmp_path, Noise(change), Poison(in_place=False))
    assert not any(held)
    found = make_trainer(Noise(change), Poison(in_place=False)).replay(guard.file)
    assert (found.batch_idx, found.exact) == (BAD, True)
    assert torch.equal(found.batch[0], make_data()[BAD][0])


def test_a_loader_that_fills_the_same_memory_again_is_copied(tmp_path):
    class Reused:
        def __iter__(self):
            memory = torch.empty(6, 4)
            for inputs, targets in make_data():
                memory.copy_(inputs)
                yield memory, targets

        def __len__(self):
            return BATCHES

    guard = NaNGuard("stop", check_every=1, folder=tmp_path)
    make_trainer(guard, Poison(in_place=False)).fit(Reused(), epochs=1)
    found = make_trainer(Poison(in_place=False)).replay(guard.file)
    assert (found.batch_idx, found.exact) == (BAD, True)
    assert torch.equal(found.batch[0], make_data()[BAD][0])


def test_the_first_change_in_place_after_many_without_is_told(tmp_path):
    class Reason(Callback):
        def after_run(self, run):
            self.said = run.stop_reason

    guard, _ = hit(tmp_path, Poison(in_place=True), reason := Reason())
    assert guard.file is None
    assert "nothing was kept for a replay: a batch was changed in place" in reason.said


def test_after_a_change_in_place_batches_are_copied(tmp_path):
    class Once(Callback):
        def before_train_iter(self, run):
            if run.batch_idx == 25:
                run.inputs.add_(0.5)

    guard, held = hit(tmp_path, Once(), Poison(in_place=False))
    assert held[25]
    assert not any(held[26:])
    found = make_trainer(Poison(in_place=False)).replay(guard.file)
    assert (found.batch_idx, found.exact) == (BAD, True)


def test_only_lists_and_tuples_of_tensors_that_nobody_shares_are_lent():
    shared = torch.from_numpy(numpy.ones(2, dtype=numpy.float32))
    for batch in ({"x": torch.ones(2)}, [torch.ones(2), "text"], [shared], torch.ones(2)):
        lending = Lending()
        lending.watch(batch, batch)
        assert lending.trusted is False


def test_a_loan_knows_whether_it_was_changed():
    batch = [torch.ones(2), torch.zeros(2)]
    loan = Loan(batch)
    assert loan.is_intact()
    batch[1] += 1
    assert not loan.is_intact()
