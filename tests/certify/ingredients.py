"""What the trainings of the storm are made of: data, models, optimizers, schedules and callbacks, by name."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tests.checkpoint.trainings import FEATURES, SAMPLES, Noisy, Poison, Stream, accuracy, data
from torch import distributed, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler, get_worker_info

from cadenza import Callback, Trainer
from cadenza.callbacks import (
    EMA,
    Accumulate,
    CosineSchedule,
    EarlyStopping,
    Freeze,
    FreezeBatchNorm,
    GradientClip,
    HistoryFile,
    LRMonitor,
    Metrics,
    MixUp,
    NaNGuard,
    OneCycleSchedule,
    PlateauSchedule,
    PreciseBatchNorm,
    Precision,
    StageSwitch,
    WeightAverage,
)
from cadenza.distributed.failures.join import part

# Data ---------------------------------------------------------------------------------------------------------------


class Parts(IterableDataset[Any]):
    """A stream of which each worker reads its own part, with noise."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(first, SAMPLES, step):
            yield torch.full((FEATURES,), index / SAMPLES) + 0.1 * torch.randn(FEATURES), index % 3


class Shuffled:
    """Batches of a loader that is not torch's, in another order each time."""

    def __iter__(self) -> Iterator[Any]:
        inputs, targets = data().tensors
        for indices in torch.randperm(SAMPLES).split(7):
            yield inputs[indices], targets[indices]

    def __len__(self) -> int:
        return -(-SAMPLES // 7)


def sampled() -> DataLoader[Any]:
    weights = torch.linspace(1, 2, SAMPLES).tolist()
    return DataLoader(data(), batch_size=7, sampler=WeightedRandomSampler(weights, 30))


def workers(count: int, dataset: Any = None, **options: Any) -> DataLoader[Any]:
    options = {"shuffle": dataset is None, **options}
    chosen = Noisy() if dataset is None else dataset
    return DataLoader(chosen, batch_size=5, num_workers=count, multiprocessing_context="fork", **options)


DATA: dict[str, Callable[[], Any]] = {
    "map": lambda: DataLoader(data(), batch_size=7, shuffle=True),
    "noisy": lambda: DataLoader(Noisy(), batch_size=7, shuffle=True, drop_last=True),
    "own generator": lambda: DataLoader(data(), 7, shuffle=True, generator=torch.Generator().manual_seed(9)),
    "sampler": sampled,
    "iterable": lambda: DataLoader(Stream(), batch_size=7),
    "list": lambda: list(DataLoader(data(), batch_size=9)),
    "foreign": Shuffled,
    "workers": lambda: workers(2),
    "persistent workers": lambda: workers(2, persistent_workers=True, prefetch_factor=3),
    "iterable with workers": lambda: workers(2, Parts(), drop_last=True),
}

# Models -------------------------------------------------------------------------------------------------------------


class Warming(nn.Module):
    """Scales by buffers that change in training; one of them is not in the state dict."""

    calls: torch.Tensor
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls.add_(1)
            self.mean.lerp_(inputs.detach().mean(0).float(), 0.1)
        return (inputs - self.mean) * (self.calls / (self.calls + 3))


class Recurrent(nn.GRU):
    """Reads the features two by two, and returns the last state."""

    def __init__(self) -> None:
        super().__init__(2, 8, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        last: torch.Tensor = super().forward(inputs.reshape(len(inputs), -1, 2))[0][:, -1]
        return last


class Scaled(nn.Sequential):
    """Scales by a tensor that is not a parameter of the model; the optimizers train it all the same."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 3))
        self.outside = (torch.ones((), requires_grad=True),)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = super().forward(inputs * self.outside[0])
        return scaled


def layers(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 8), *middle, nn.Linear(8, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "norm": lambda: layers(nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)),
    "buffers": lambda: layers(Warming(), nn.Tanh(), nn.Dropout(0.1)),
    "spectral": lambda: layers(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.ReLU()),
    "recurrent": lambda: nn.Sequential(Recurrent(), nn.Linear(8, 3)),
    "a parameter outside": Scaled,
}

# Optimizers and schedules -------------------------------------------------------------------------------------------


def trained(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *getattr(model, "outside", ())]


def halves(model: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    parameters = trained(model)
    return parameters[:2], parameters[2:]


def two(model: nn.Module) -> list[torch.optim.Optimizer]:
    one, other = halves(model)
    return [torch.optim.AdamW(one, lr=0.01), torch.optim.SGD(other, lr=0.02, momentum=0.9)]


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    one, other = halves(model)
    return torch.optim.AdamW([{"params": one, "lr": 0.003}, {"params": other, "weight_decay": 0.1}], lr=0.01)


OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "sgd": lambda model: torch.optim.SGD(trained(model), lr=0.05, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(trained(model), lr=0.01, amsgrad=True),
    "nadam": lambda model: torch.optim.NAdam(trained(model), lr=0.01),
    "rmsprop": lambda model: torch.optim.RMSprop(trained(model), lr=0.005, momentum=0.5, centered=True),
    "adagrad": lambda model: torch.optim.Adagrad(trained(model), lr=0.05),
    "groups": grouped,
    "two": two,
    "added groups": lambda model: torch.optim.SGD(halves(model)[1], lr=0.05, momentum=0.9),
    "lbfgs": lambda model: torch.optim.LBFGS(trained(model), lr=0.1, max_iter=3, history_size=4),
}


def each(make: Callable[[torch.optim.Optimizer], Any]) -> Callable[[Any], list[Any]]:
    """One scheduler of torch for each optimizer."""
    return lambda optimizers: [make(one) for one in (optimizers if isinstance(optimizers, list) else [optimizers])]


def warmed(optimizer: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
    warmup, cosine = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1), lr_scheduler.CosineAnnealingLR(optimizer, 4)
    return lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[1])


SCHEDULES: dict[str, Callable[[Any], Callback | list[Any] | None]] = {
    "none": lambda optimizers: None,
    "one cycle": lambda optimizers: OneCycleSchedule(momentum=None, length="15 steps"),
    "cosine": lambda optimizers: CosineSchedule(warmup="2 steps", length="15 steps"),
    "plateau": lambda optimizers: PlateauSchedule("train/loss", patience=1, factor=0.5),
    "torch steps": each(lambda optimizer: lr_scheduler.StepLR(optimizer, 1, gamma=0.5)),
    "torch restarts": each(lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)),
    "torch sequence": each(warmed),
}

# Callbacks ----------------------------------------------------------------------------------------------------------


class Unfreeze(Callback):
    """Gradual unfreezing: the optimizer begins with one half of the model, and gets the other after an epoch."""

    def before_epoch(self, run: Any) -> None:
        if run.epoch == 1 and len(run.optimizer.param_groups) == 1:
            run.optimizer.add_param_group({"params": halves(run.module)[0], "lr": 0.01})


class Diary(Callback):
    """Keeps counts and drawn numbers in ``run.store`` and in its own state, and logs them."""

    def __init__(self) -> None:
        self.seen = 0

    def after_train_iter(self, run: Any) -> None:
        self.seen += 1
        run.store["drawn"] = run.store.get("drawn", 0.0) + float(torch.rand(()))
        run.log("drawn", run.store["drawn"])

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Growing(nn.Module):
    """A criterion with a state."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.ones(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if output.requires_grad:
            self.calls += 1
        return nn.functional.cross_entropy(output, target) * (self.calls / (self.calls + 4))


def growing(run: Any) -> None:
    run.criterion = Growing()


class Asks(Callback):
    """Asks for what a run grants: saves, skipped batches, the early end of an epoch, no validation."""

    asks = frozenset({"skip_batch"})
    agree = "same"

    def before_forward(self, run: Any) -> None:
        if run.training and run.clock.batches % 5 == 3:
            run.skip_batch()

    def after_train_iter(self, run: Any) -> None:
        if run.epoch == 1 and run.batch_idx == 2:
            run.end_epoch()
            run.skip_validation()
        if run.clock.batches % 4 == 1:
            run.save()


def smoother(run: Any) -> None:
    run.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)


MORE: dict[str, Callable[[Path], list[Callback]]] = {
    "ema": lambda folder: [EMA(0.9)],
    "swa": lambda folder: [WeightAverage(start="1 epoch")],
    "accumulate": lambda folder: [Accumulate(3)],
    "clip": lambda folder: [GradientClip(norm=0.5)],
    "mixup": lambda folder: [MixUp(0.4)],
    "freeze": lambda folder: [Freeze(FIRST, until="1 epoch")],
    "freeze by steps": lambda folder: [Freeze(FIRST, until="4 steps")],
    "freeze batchnorm": lambda folder: [FreezeBatchNorm()],
    "precise batchnorm": lambda folder: [PreciseBatchNorm()],
    "early stopping": lambda folder: [EarlyStopping("train/loss", patience=1)],
    "nan skips": lambda folder: [Poison(), NaNGuard(action="skip")],
    "metrics": lambda folder: [Metrics({"accuracy": accuracy}, stages={"train"})],
    "stage switch": lambda folder: [StageSwitch("6 steps", smoother)],
    "another criterion": lambda folder: [StageSwitch("6 steps", growing)],
    "bf16": lambda folder: [Precision("bf16")],
    "fp16": lambda folder: [Precision("fp16", init_scale=2.0**18, growth_interval=2)],
    "history file": lambda folder: [HistoryFile(folder / "history.csv")],
    "history of iterations": lambda folder: [HistoryFile(folder / "rows.jsonl", rows="all", flush_every=3)],
    "learning rates": lambda folder: [LRMonitor()],
    "diary": lambda folder: [Diary()],
    "asks": lambda folder: [Asks()],
}
FIRST = "0"


def custom(trainer: Trainer, train: Any, held: Any, epochs: int) -> None:
    """A custom loop with two passes over the training data in each epoch."""
    with trainer.run(epochs=epochs, resume="auto") as run:
        for _ in run.epochs():
            for _batch in run.train(train):
                run.forward()
                run.backward()
                run.step()
            for _batch in run.validate(held):
                run.eval_step()


def on_two_ranks(folder: Path, train: Callable[[], Any]) -> Any:
    """Trains in this process and in a fork of it, as two ranks; starting interpreters would take much longer."""
    meeting = folder.with_name(f"{folder.name}-meeting-{os.getpid()}")

    def rank(number: int) -> Any:
        os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=2)
        try:
            return train()
        finally:
            part()

    other = multiprocessing.get_context("fork").Process(target=rank, args=(1,))
    other.start()
    try:
        return rank(0)
    except BaseException:
        other.join(10)  # it ends with this rank, unless it still waits to meet it: a fork may lose a signal
        other.kill()
        raise
    finally:
        other.join()
