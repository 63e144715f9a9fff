"""Oversample: classes in balance, settings kept, the user's loader back in its place."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import cadenza
from cadenza.callbacks.training.oversample import Oversample, balanced
from cadenza.testing import Recorder, check_callback

COUNTS = (40, 8, 4)


def rare(counts: tuple[int, ...] = COUNTS) -> TensorDataset:
    """Samples that carry their own number, in classes of different size."""
    targets = torch.cat([torch.full((count,), number) for number, count in enumerate(counts)])
    inputs = torch.arange(float(len(targets))).unsqueeze(1).expand(-1, 4)
    return TensorDataset(inputs, targets)


def made(*callbacks: cadenza.Callback) -> cadenza.Trainer:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    return cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def seen_by(trainer: cadenza.Trainer, loader: Any, epochs: int = 1) -> list[tuple[int, int]]:
    """Number and class of each sample in the order of training."""
    seen: list[tuple[int, int]] = []

    def note(run: cadenza.Run) -> None:
        seen.extend(zip(run.inputs[:, 0].long().tolist(), run.targets.tolist(), strict=True))

    trainer.on("before_train_iter")(note)
    trainer.fit(loader, epochs=epochs)
    return seen


def test_every_class_comes_about_equally_often() -> None:
    seen = seen_by(made(Oversample()), DataLoader(rare(), batch_size=16), epochs=10)
    assert len(seen) == 10 * 3 * 40
    counts = Counter(target for _, target in seen)
    assert all(count == pytest.approx(400, rel=0.15) for count in counts.values())
    assert len({number for number, _ in seen}) == sum(COUNTS)


def test_undersampling_takes_exactly_so_many_of_each_and_none_twice() -> None:
    seen = seen_by(made(Oversample(undersample=True)), DataLoader(rare(), batch_size=5), epochs=3)
    epochs = [seen[start : start + 12] for start in range(0, 36, 12)]
    assert len(seen) == 36
    for epoch in epochs:
        assert Counter(target for _, target in epoch) == {0: 4, 1: 4, 2: 4}
        assert len({number for number, _ in epoch}) == 12
    assert {number for number, _ in epochs[0]} != {number for number, _ in epochs[1]}


def test_it_equals_a_loop_by_hand_over_a_weighted_sampler() -> None:
    trainer = made(Oversample())
    torch.manual_seed(4)
    trainer.fit(DataLoader(rare(), batch_size=16), epochs=2)

    model = made().model
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    weights = [1 / COUNTS[target] for _, target in rare()]
    loader = DataLoader(rare(), batch_size=16, sampler=WeightedRandomSampler(weights, 120))
    torch.manual_seed(4)
    for _ in range(2):
        for inputs, targets in loader:
            nn.functional.cross_entropy(model(inputs), targets).backward()
            sgd.step()
            sgd.zero_grad()
    assert torch.equal(trainer.model.weight, model.weight)


def test_the_draws_come_from_the_loaders_generator_and_a_second_fit_goes_on() -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(rare(), batch_size=16, generator=torch.Generator().manual_seed(1))

    torch.manual_seed(1)
    once = seen_by(made(Oversample()), loader(), epochs=2)
    torch.manual_seed(2)
    trainer, same = made(Oversample()), loader()
    first = seen_by(trainer, same)
    assert first == once[:120]
    trainer.fit(same, epochs=1)
    assert trainer.clock.samples == 240


# What is kept, and what comes back ----------------------------------------------------------------------------------


def collate(samples: list[Any]) -> Any:
    return torch.stack([sample[0] for sample in samples]), torch.tensor([int(sample[1]) for sample in samples])


def seeded(worker: int) -> None:
    torch.manual_seed(worker)


def test_every_setting_of_the_loader_is_kept() -> None:
    own = DataLoader(
        rare(),
        batch_size=7,
        num_workers=2,
        collate_fn=collate,
        pin_memory=True,
        drop_last=True,
        timeout=11,
        worker_init_fn=seeded,
        multiprocessing_context="spawn",
        generator=torch.Generator().manual_seed(1),
        prefetch_factor=3,
        persistent_workers=True,
        in_order=False,
    )
    new = balanced(own)
    replaced = {"dataset", "shuffle", "sampler", "batch_sampler"}
    for name in set(inspect.signature(DataLoader).parameters) - replaced:
        assert getattr(new, name) == getattr(own, name), name
    assert new.dataset is own.dataset
    assert isinstance(new.sampler, WeightedRandomSampler)
    assert len(new) == 120 // 7


class _Numbered(Dataset[Any]):
    """Gives the process that read a sample as its input."""

    targets = (0, 0, 0, 1)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(os.getpid())), self.targets[index]


def test_workers_persist_over_the_epochs() -> None:
    processes: list[set[float]] = []
    trainer = made(Oversample())
    trainer.on("before_train_iter")(lambda run: processes.append(set(run.inputs[:, 0].tolist())))
    loader = DataLoader(
        _Numbered(), batch_size=6, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
    )
    trainer.fit(loader, epochs=3)
    assert len(processes) == 3
    assert set.union(*processes) == processes[0]
    assert float(os.getpid()) not in processes[0]


@pytest.mark.parametrize("ending", ["in order", "stop", "error"])
def test_the_users_loader_is_back_after_each_epoch(ending: str) -> None:
    loader, loaders = DataLoader(rare(), batch_size=16), []
    trainer = made(Oversample())

    @trainer.on("after_train_iter")
    def end(run: cadenza.Run) -> None:
        assert run.train_loader is not loader
        if ending == "stop":
            run.stop()
        elif ending == "error":
            raise OSError("on purpose")

    for point in ("before_epoch", "after_epoch", "after_run", "after_error"):
        trainer.on(point)(lambda run: loaders.append(run.train_loader))
    if ending == "error":
        with pytest.raises(OSError, match="on purpose"):
            trainer.fit(loader, epochs=2)
    else:
        trainer.fit(loader, epochs=2)
    assert loaders
    assert all(one is loader for one in loaders)


def test_under_when_it_begins_later() -> None:
    trainer = made(cadenza.When(Oversample(), start="1 epoch"))
    seen = seen_by(trainer, DataLoader(rare(), batch_size=16), epochs=2)
    assert len(seen) == 52 + 120


def test_accumulation_skips_and_points_are_those_of_any_loader() -> None:
    class Hold(cadenza.Callback):
        def before_train_iter(self, run: cadenza.Run) -> None:
            if run.batch_idx == 1:
                run.skip_batch()
            elif run.batch_idx % 2 == 0:
                run.hold_step()

    recorder = Recorder(["after_step", "after_train_iter"])
    trainer = made(Oversample(), Hold(), recorder)
    trainer.fit(DataLoader(rare(), batch_size=16), epochs=1)
    assert recorder.trace.count("after_train_iter") == 8
    assert trainer.clock.steps == recorder.trace.count("after_step") == 3


# What is refused ---------------------------------------------------------------------------------------------------


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(rare())


class _OwnLoader(DataLoader[Any]):
    pass


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ([(torch.zeros(2, 4), torch.zeros(2))], "not list"),
        (_OwnLoader(rare()), "not _OwnLoader"),
        (DataLoader(_Stream()), "IterableDataset"),
        (DataLoader(rare(), sampler=SubsetRandomSampler(range(4))), "SubsetRandomSampler, which would be lost"),
        (DataLoader(rare(), batch_sampler=BatchSampler(SequentialSampler(rare()), 4, False)), "batch_sampler"),
    ],
    ids=["list", "subclass", "iterable", "sampler", "batch_sampler"],
)
def test_loaders_that_would_lose_something_are_refused(loader: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        made(Oversample()).fit(loader, epochs=1)


def test_a_loop_of_ones_own_must_put_the_loader_on_the_run() -> None:
    loader = DataLoader(rare(), batch_size=16)
    with (
        pytest.raises(ValueError, match=r"balances run\.train_loader, and there is none"),
        made(Oversample()).run(epochs=1) as run,
    ):
        for _ in run.epochs():
            pass
    trainer = made(Oversample())
    with trainer.run(epochs=1) as run:
        run.train_loader = loader
        for _ in run.epochs():
            for _ in run.train():
                run.train_step()
    assert trainer.clock.samples == 120


def test_batches_without_a_size_are_single_samples() -> None:
    one_by_one = balanced(DataLoader(rare(), batch_size=None))
    inputs, target = next(iter(one_by_one))
    assert isinstance(inputs, Tensor)
    assert inputs.shape == (4,)
    assert target.dim() == 0


def test_explain_says_what_is_balanced() -> None:
    assert Oversample().explain() == "classes from the data set, as many of each as the largest has"
    assert Oversample([0, 1], undersample=True).explain() == "classes as given, as many of each as the smallest has"


@pytest.mark.parametrize("callback", [Oversample(undersample=True)], ids=["under"])
def test_it_behaves_as_a_callback_should(callback: Oversample) -> None:
    check_callback(callback)
