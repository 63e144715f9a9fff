"""Tensors in memory are read by indexing: the same batches and the same draws as by DataLoader, to the last bit."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from tests.data.course import generators, interrupted, seed, straight
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data._utils import collate

import cadenza
from cadenza.data import Feed, TensorLoader, plain, prepare, why_not_in_memory
from cadenza.data.tensor_feed import TensorFeed
from cadenza.testing import tiny_classifier

N = 23


def data() -> TensorDataset:
    torch.manual_seed(3)
    images = torch.randn(N, 3, 4, 4).to(memory_format=torch.channels_last)
    return TensorDataset(images, torch.randint(5, (N,)), torch.randn(5, N).double().t(), torch.rand(N) > 0.5)


def own() -> torch.Generator:
    return torch.Generator().manual_seed(8)


LOADERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: DataLoader(data(), batch_size=4),
    "whole": lambda: DataLoader(data(), batch_size=N, shuffle=True, generator=own()),
    "shuffled": lambda: DataLoader(data(), batch_size=4, shuffle=True),
    "generator": lambda: DataLoader(data(), batch_size=4, shuffle=True, generator=own()),
    "other generator": lambda: DataLoader(data(), batch_size=4, generator=own(), sampler=RandomSampler(data())),
    "drop_last": lambda: DataLoader(data(), batch_size=4, shuffle=True, drop_last=True, generator=own()),
    "drop none": lambda: DataLoader(TensorDataset(torch.arange(24)), batch_size=4, shuffle=True, generator=own()),
    "larger than all": lambda: DataLoader(data(), batch_size=100, shuffle=True, generator=own()),
    "replacement": lambda: DataLoader(data(), batch_size=4, sampler=RandomSampler(data(), True, 50, own())),
    "longer": lambda: DataLoader(data(), batch_size=4, sampler=RandomSampler(data(), num_samples=50, generator=own())),
    "shorter": lambda: DataLoader(data(), batch_size=4, sampler=RandomSampler(data(), num_samples=9)),
    "weighted": lambda: DataLoader(data(), batch_size=4, sampler=WeightedRandomSampler([1.0] * N, 15, generator=own())),
    "subset": lambda: DataLoader(data(), batch_size=4, sampler=SubsetRandomSampler([1, -2, 3, 9, 11])),
    "subset of lists": lambda: DataLoader(
        data(), batch_size=2, sampler=SubsetRandomSampler([[i, -i - 1] for i in range(12)])
    ),
    "subset of slices": lambda: DataLoader(
        data(), batch_size=2, sampler=SubsetRandomSampler([slice(i, i + 2) for i in range(12)])
    ),
    "subset of tensors": lambda: DataLoader(data(), batch_size=2, sampler=SubsetRandomSampler(torch.arange(12))),
    "distributed": lambda: DataLoader(data(), batch_size=4, sampler=DistributedSampler(data(), 2, 1)),
    "batch_sampler": lambda: DataLoader(data(), batch_sampler=BatchSampler(SequentialSampler(data()), 5, True)),
    "shuffled batch_sampler": lambda: DataLoader(data(), batch_sampler=BatchSampler(RandomSampler(data()), 4, False)),
    "weighted batch_sampler": lambda: DataLoader(
        data(), batch_sampler=BatchSampler(WeightedRandomSampler([1.0] * N, 15), 4, True), generator=own()
    ),
    "one": lambda: DataLoader(TensorDataset(torch.arange(N)), shuffle=True),
    "unsigned": lambda: DataLoader(
        TensorDataset(*(torch.arange(N).to(kind) for kind in (torch.uint16, torch.uint32, torch.uint64))),
        batch_size=4,
        shuffle=True,
    ),
}


def traced(loader: Any, generator: torch.Generator | None, epochs: int = 2, batches: int | None = None) -> list[Any]:
    """Each batch with type, strides and storage, and where all generators stand after it."""
    seed(2)
    seen: list[Any] = []
    for _ in range(epochs):
        iterator = iter(loader)
        seen.append(generators())
        for batch in itertools.islice(iterator, batches):
            seen.append(
                (type(batch), [(part.dtype, part.stride(), part.is_contiguous(), part.tolist()) for part in batch])
            )
            seen.append((generators(), None if generator is None else generator.get_state().tolist()))
            torch.rand(2)
        seen.append((generators(), None if generator is None else generator.get_state().tolist()))
    return seen


def drawn_from(loader: Any) -> torch.Generator | None:
    return loader.generator or getattr(loader.sampler, "generator", None)


@pytest.mark.parametrize("batches", [None, 1, 3])
@pytest.mark.parametrize("kind", LOADERS)
def test_the_same_as_dataloader(kind: str, batches: int | None) -> None:
    loader = LOADERS[kind]()
    assert why_not_in_memory(loader) is None
    feed = prepare(loader)
    assert isinstance(feed, TensorFeed)
    assert len(feed) == len(loader)
    fast = traced(feed, drawn_from(loader), batches=batches)
    slow = LOADERS[kind]()
    assert fast == traced(slow, drawn_from(slow), batches=batches)


@pytest.mark.parametrize("cuts", [[0], [1], [2, 3, 4], [5], [-1], [1, -1, 5]], ids=str)
@pytest.mark.parametrize("kind", [kind for kind in LOADERS if kind not in ("whole", "larger than all")])
def test_resumed_equals_uninterrupted(kind: str, cuts: list[int]) -> None:
    assert interrupted(LOADERS[kind], cuts) == straight(LOADERS[kind])


@pytest.mark.parametrize("kind", LOADERS)
def test_a_position_is_good_for_the_plain_loader_too(kind: str) -> None:
    feed = prepare(LOADERS[kind](), resumable=True)
    seed(1)
    batches = iter(feed)
    next(batches)
    state = feed.state_dict(1)
    rest = [[part.tolist() for part in batch] for batch in batches]
    other = prepare(plain(LOADERS[kind]()), resumable=True)
    assert not isinstance(other, TensorFeed)
    other.load_state_dict(state)
    assert [[part.tolist() for part in batch] for batch in other] == rest


def test_batches_do_not_share_memory_with_the_data() -> None:
    for how in ({}, {"shuffle": True}):
        dataset = TensorDataset(torch.zeros(6))
        for (batch,) in prepare(DataLoader(dataset, batch_size=2, **how)):
            batch += 1
        assert dataset.tensors[0].sum() == 0


@pytest.mark.parametrize("sampler", [SequentialSampler, RandomSampler])
def test_indices_beyond_the_data_are_an_error(sampler: Any) -> None:
    loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=4, sampler=sampler(range(9)))
    for made in (loader, prepare(loader)):
        with pytest.raises(IndexError, match=r"out of (bounds|range)"):
            list(made)


def test_data_that_change_between_passes() -> None:
    dataset = TensorDataset(torch.zeros(4))
    feed = prepare(DataLoader(dataset, batch_size=4))
    assert next(iter(feed))[0].tolist() == [0] * 4
    dataset.tensors = (torch.ones(4),)
    assert next(iter(feed))[0].tolist() == [1] * 4


class Own(TensorDataset):
    pass


class OwnLoader(DataLoader[Any]):
    pass


class Pairs(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def tensors(**how: Any) -> TensorDataset:
    return TensorDataset(torch.zeros(4, **how))


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (lambda: [1, 2], "it is a list"),
        (lambda: OwnLoader(tensors()), "it is a OwnLoader"),
        (lambda: DataLoader(Own(torch.zeros(4))), "its data set is a Own"),
        (lambda: DataLoader(Pairs()), "its data set is a Pairs"),
        (lambda: DataLoader(tensors(), num_workers=1), "workers"),
        (lambda: DataLoader(tensors(), worker_init_fn=print), "workers"),
        (lambda: DataLoader(tensors(), collate_fn=lambda samples: default_collate(samples)), "collate_fn"),
        (lambda: DataLoader(tensors(), sampler=[0, 1]), "sampler"),
        (lambda: DataLoader(tensors(), batch_sampler=[[0, 1]]), "sampler"),
        (lambda: DataLoader(tensors(), batch_size=None), "batch_size=None"),
        (lambda: DataLoader(tensors(requires_grad=True)), "gradient"),
        (lambda: DataLoader(TensorDataset(torch.nn.Parameter(torch.zeros(4)))), "special kind"),
        (lambda: DataLoader(TensorDataset(torch.eye(3).to_sparse())), "special kind"),
        (lambda: DataLoader(TensorDataset(torch.zeros(3, dtype=torch.complex64).conj())), "lazy view"),
        (lambda: plain(DataLoader(tensors())), "plain"),
    ],
)
def test_what_forbids_it(loader: Any, reason: str) -> None:
    made = loader()
    said = why_not_in_memory(made)
    assert said is not None
    assert reason in said
    assert prepare(made) is made


def test_another_way_to_collate_tensors_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def summed(samples: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        return torch.stack(samples).sum(0)

    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=4)
    monkeypatch.setitem(collate.default_collate_fn_map, torch.Tensor, summed)
    assert "default_collate was told" in str(why_not_in_memory(loader))
    assert [batch[0].item() for batch in prepare(loader)] == [6]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what holds without a CUDA device")
def test_pinned_memory_needs_a_device() -> None:
    assert "CUDA" in str(why_not_in_memory(DataLoader(tensors(), pin_memory=True)))


def test_tensor_loader_is_a_drop_in() -> None:
    inputs, targets = torch.randn(N, 6), torch.arange(N)
    mine = TensorLoader(inputs, targets, batch_size=4, shuffle=True, generator=own())
    theirs = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True, generator=own())
    assert len(mine) == len(theirs)
    assert len(mine.dataset) == N
    assert mine.batch_size == 4
    assert traced(mine, None) == traced(theirs, None)


def test_tensor_loader_can_be_copied_and_sent_in_mid_pass() -> None:
    loader = TensorLoader(torch.arange(N), batch_size=4, shuffle=True)
    seed(1)
    batches = iter(loader)
    next(batches)
    copies = copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))
    rest = [batch[0].tolist() for batch in batches]
    seed(1)
    assert [batch[0].tolist() for batch in loader][1:] == rest
    for other in copies:
        seed(1)
        assert [batch[0].tolist() for batch in other][1:] == rest


def test_tensor_loader_tells_that_its_batches_are_pinned() -> None:
    """The training asks for it: such batches are copied beside the step."""
    assert TensorLoader(torch.arange(4), pin_memory=True).pin_memory is True
    assert TensorLoader(torch.arange(4)).pin_memory is False


def test_tensor_loader_takes_arrays() -> None:
    loader = TensorLoader(numpy.arange(6.0).reshape(3, 2), [1, 2, 3], batch_size=2)
    assert [[part.tolist() for part in batch] for batch in loader] == [
        [[[0.0, 1.0], [2.0, 3.0]], [1, 2]],
        [[[4.0, 5.0]], [3]],
    ]


def test_tensor_loader_resumes() -> None:
    def make() -> Any:
        return TensorLoader(torch.arange(N), batch_size=4, shuffle=True)

    assert interrupted(make, [2, 3, -1, 9]) == straight(make)


def test_tensor_loader_refuses() -> None:
    with pytest.raises(ValueError, match=r"different numbers of samples: \[3, 4\]"):
        TensorLoader(torch.zeros(3), torch.zeros(4))
    with pytest.raises(TypeError, match="single number"):
        TensorLoader(torch.tensor(1.0))
    with pytest.raises(TypeError, match="no tensors"):
        TensorLoader()
    with pytest.raises(TypeError, match="argument 1 is a ndarray: make a tensor of it first"):
        TensorLoader(torch.zeros(2), numpy.array(["cat", "dog"]))
    with pytest.raises(TypeError, match="argument 0 is a dict: give its values one by one"):
        TensorLoader({"x": torch.zeros(2)})


def test_kept_on_a_device() -> None:
    """On the CPU this is where the data are already; the GPU is tested where there is one."""
    loader = TensorLoader(torch.arange(6), batch_size=4, device="cpu")
    assert next(iter(loader))[0].device.type == "cpu"


def test_training_with_it_is_bit_equal() -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[Any]:
        seed(4)
        model = tiny_classifier()
        loader = wrap(
            DataLoader(TensorDataset(torch.randn(20, 4), torch.randint(3, (20,))), batch_size=3, shuffle=True)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = cadenza.Trainer(model, optimizer, torch.nn.CrossEntropyLoss(), device="cpu")
        trainer.fit(loader, epochs=2)
        return [parameter.tolist() for parameter in model.parameters()]

    assert trained(prepare) == trained(lambda loader: loader)


def test_nothing_asked_nothing_done() -> None:
    batches = [1, 2]
    assert prepare(batches) is batches
    loader = DataLoader(Pairs())
    assert prepare(loader) is loader
    feed = prepare(loader, resumable=True)
    assert isinstance(feed, Feed)
    assert prepare(feed) is feed


def test_a_loader_that_is_changed_between_passes() -> None:
    loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=2)
    feed = prepare(loader, resumable=True)
    assert len(list(feed)) == 3
    loader.batch_sampler.batch_size = 3  # type: ignore[union-attr]
    assert [batch[0].tolist() for batch in feed] == [[0, 1, 2], [3, 4, 5]]
    loader.collate_fn = len
    assert list(feed) == [3, 3]


def test_whoever_wants_to_know_the_epoch_is_told() -> None:
    class Told(Pairs):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    data = Told()
    for resumable in (False, True):
        feed = prepare(DataLoader(data), resumable=resumable)
        feed.set_epoch(3 + resumable)
        assert data.epoch == 3 + resumable
