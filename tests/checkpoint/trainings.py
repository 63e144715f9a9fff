"""Small trainings, each ``(folder, callbacks)``, that are killed and resumed by the tests beside this file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from cadenza import Callback, MainCallback, Trainer
from cadenza.callbacks import (
    EMA,
    Accumulate,
    Checkpoint,
    EarlyStopping,
    GradientClip,
    Metrics,
    NaNGuard,
    OneCycleSchedule,
    PlateauSchedule,
    Precision,
    WeightAverage,
)

SAMPLES, FEATURES = 33, 6


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randn(SAMPLES, FEATURES, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator)
    )


class Noisy(Dataset[Any]):
    """Draws from all generators for every sample, as augmentation does."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        torch.manual_seed(index) if index < 0 else None
        return torch.randn(FEATURES) + random.random() * index, index % 3


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for index in range(SAMPLES):
            yield torch.full((FEATURES,), index / SAMPLES), index % 3


def train(
    folder: Path,
    callbacks: list[Callback],
    *more: Callback,
    loader: Any = None,
    every: str = "2 steps",
    epochs: int = 4,
    main: MainCallback | None = None,
    two: bool = False,
    background: bool = True,
    final: bool = True,
    execution: str = "eager",
    hidden: int = 8,
) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(FEATURES, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(hidden, 3),
    )
    optimizers = [torch.optim.AdamW(model[:2].parameters(), lr=0.01), torch.optim.SGD(model[2:].parameters(), lr=0.02)]
    optimizer = optimizers if two else torch.optim.Adam(model.parameters(), lr=0.01)
    saving = Checkpoint(every, to=folder, keep_last=2, background=background, final=final)
    mains = [] if main is None else [main]
    trainer = Trainer(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        callbacks=[*mains, saving, *more, *callbacks],
        device="cpu",
        execution=execution,
        seed=3,
    )
    loader = DataLoader(data(), batch_size=7, shuffle=True) if loader is None else loader
    trainer.fit(loader, DataLoader(data(), batch_size=16), epochs=epochs, resume="auto")
    return trainer


def plain(folder: Path, callbacks: list[Callback]) -> None:
    train(folder, callbacks, epochs=8)


def ended_unsaved(folder: Path, callbacks: list[Callback]) -> None:
    """With the signal of a player that comes after the one who saves."""
    for callback in callbacks:
        callback.order = 10**6
    train(folder, callbacks, every="1 epoch", epochs=2, final=False)


def short(folder: Path, callbacks: list[Callback]) -> None:
    train(folder, callbacks, epochs=2)


def over_quota(folder: Path, callbacks: list[Callback]) -> Trainer:
    """The first start, but that of the whole run, may not write files as large as a checkpoint."""
    import resource

    if folder.name != "whole" and not (folder / "again").exists():
        (folder / "again").touch()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, resource.RLIM_INFINITY))
    return train(folder, callbacks, epochs=2, hidden=4096)


def compiled(folder: Path, callbacks: list[Callback]) -> None:
    train(folder, callbacks, epochs=1, execution="compiled")


def traced(folder: Path, callbacks: list[Callback]) -> None:
    """Compiled but for the compiler itself, which takes seconds: what was traced is played as it is."""
    from cadenza.execution.recorded import compiled as recorder

    recorder.compile_graph = lambda graph, inputs: graph
    compiled(folder, callbacks)


def every_point(folder: Path, callbacks: list[Callback]) -> None:
    more = EMA(0.9), EarlyStopping("val/loss", patience=100), Metrics({"accuracy": accuracy})
    train(folder, callbacks, *more, every="1 steps", epochs=14, background=False)


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(1) == target).double().mean()


def accumulation_ema_clip(folder: Path, callbacks: list[Callback]) -> None:
    train(folder, callbacks, Accumulate(3), EMA(0.9), GradientClip(norm=0.5), every="1 steps")


def one_worker(folder: Path, callbacks: list[Callback]) -> None:
    loader = DataLoader(Noisy(), batch_size=7, shuffle=True, num_workers=1, multiprocessing_context="fork")
    train(folder, callbacks, loader=loader, epochs=2)


def two_workers(folder: Path, callbacks: list[Callback]) -> None:
    loader = DataLoader(
        Noisy(), batch_size=5, shuffle=True, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    train(folder, callbacks, loader=loader, epochs=2)


def noisy_data(folder: Path, callbacks: list[Callback]) -> None:
    train(folder, callbacks, loader=DataLoader(Noisy(), batch_size=7, shuffle=True))


def iterable_data(folder: Path, callbacks: list[Callback]) -> None:
    train(folder, callbacks, loader=DataLoader(Stream(), batch_size=7))


def bf16(folder: Path, callbacks: list[Callback]) -> None:
    train(folder, callbacks, Precision("bf16"))


def fp16(folder: Path, callbacks: list[Callback]) -> None:
    """The first scales are too large, so that steps are withheld; then it grows again and again."""
    train(folder, callbacks, Precision("fp16", init_scale=2.0**18, growth_interval=2))


def stopping_and_plateau(folder: Path, callbacks: list[Callback]) -> None:
    more = EarlyStopping("val/loss", patience=3), PlateauSchedule("train/loss", patience=1, factor=0.5)
    train(folder, callbacks, *more, epochs=6)


def one_cycle_and_swa(folder: Path, callbacks: list[Callback]) -> None:
    train(folder, callbacks, OneCycleSchedule(), WeightAverage(start="1 epoch"))


class Poison(Callback):
    """Makes the loss of some batches NaN."""

    def after_loss(self, run: Any) -> None:
        if run.training and run.batch_idx % 3 == 1:
            run.loss = run.loss * float("nan")


def nan_skips(folder: Path, callbacks: list[Callback]) -> None:
    train(folder, callbacks, Poison(), NaNGuard(action="skip"))


def two_optimizers(folder: Path, callbacks: list[Callback]) -> None:
    train(folder, callbacks, two=True)
