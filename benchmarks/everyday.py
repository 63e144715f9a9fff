"""Callbacks of everyday use together, against loops by hand that do the same arithmetic, on a small MLP.

784-256-256-10 with batches of 128 that are there already, SGD with momentum, one thread. Used by ``overhead.py``.
"""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measure import timed
from torch import nn

import cadenza
from cadenza.callbacks import (
    EMA,
    Accumulate,
    CosineSchedule,
    CostLedger,
    EarlyStopping,
    ExtremeBatches,
    GradientClip,
    HistoryFile,
    HistoryPlot,
    LRMonitor,
    MemoryMonitor,
    Metrics,
    NaNGuard,
    Progress,
    Throughput,
    Timer,
    accuracy,
)

EPOCHS, WINDOW, NORM, DECAY = 2, 2, 1.0, 0.999


def small_parts() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    layers = nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    model = nn.Sequential(*layers)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), nn.CrossEntropyLoss()


def small_batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(128, 784), torch.randint(0, 10, (128,))) for _ in range(steps)]


def six_by_hand(data: list[Any]) -> float:
    """Accumulation, clipping, an average, a cosine schedule and a NaN flag, as one would write them."""
    model, optimizer, criterion = small_parts()
    weights = list(model.parameters())
    average = [weight.detach().clone() for weight in weights]
    total = EPOCHS * len(data) // WINDOW

    def train() -> None:
        step, finite, losses = 0, torch.tensor(True), []
        for _ in range(EPOCHS):
            for index, (inputs, targets) in enumerate(data):
                loss = criterion(model(inputs), targets)
                finite &= loss.detach().isfinite()
                losses.append(loss.detach())
                (loss / WINDOW).backward()
                if (index + 1) % WINDOW:
                    continue
                torch.nn.utils.clip_grad_norm_(weights, NORM)
                optimizer.param_groups[0]["lr"] = 0.01 * (1 + math.cos(math.pi * step / total)) / 2
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    torch._foreach_lerp_(average, weights, 1 - DECAY)
                step += 1
            if not finite or float(torch.stack(losses).mean()) > 1e9:
                raise FloatingPointError

    return timed(train)


def six() -> list[cadenza.Callback]:
    changing = [Accumulate(WINDOW), GradientClip(norm=NORM), EMA(DECAY), CosineSchedule()]
    return [*changing, NaNGuard(), EarlyStopping("train/loss", patience=3)]


def six_callbacks(data: list[Any]) -> float:
    trainer = cadenza.Trainer(*small_parts(), callbacks=six(), device="cpu")
    return timed(lambda: trainer.fit(data, epochs=EPOCHS))


# The ledger ---------------------------------------------------------------------------------------------------------

STRETCH = 100
"""One batch in so many is measured by the ledger."""


def stretches(data: list[Any], rounds: int, more: list[cadenza.Callback]) -> Iterator[None]:
    """A training with the six and ``more``; yields after each stretch of steps."""
    early = EarlyStopping("train/loss", patience=rounds)
    callbacks = [*(one for one in six() if not isinstance(one, EarlyStopping)), early, *more]
    trainer = cadenza.Trainer(*small_parts(), callbacks=callbacks, device="cpu")
    with trainer.run(epochs=rounds) as run:
        for _ in run.epochs():
            for _ in run.train(data):
                run.train_step()
                if run.clock.batches % STRETCH == STRETCH - 1:
                    yield


def ledger_ratios(data: list[Any], rounds: int) -> list[float]:
    """Stretches of a training with the ledger against those before and after it of one without."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = CostLedger(stream=io.StringIO(), path=Path(folder) / "costs.json")
        plain, measured = stretches(data, rounds + 3, []), stretches(data, rounds + 3, [ledger])
        for one in (plain, measured, plain, measured):
            next(one)
        ratios, before = [], timed(lambda: next(plain))
        for _ in range(rounds):
            seconds = timed(lambda: next(measured))
            after = timed(lambda: next(plain))
            ratios.append(seconds / ((before + after) / 2))
            before = after
        plain.close()
        measured.close()
    return ratios


# Fifteen ------------------------------------------------------------------------------------------------------------

WARMUP = 20


def fifteen_by_hand(data: list[Any], epochs: int) -> float:
    """Clipping, an average, accuracy and a cosine schedule with warm-up, trained and validated."""
    model, optimizer, criterion = small_parts()
    weights = list(model.parameters())
    average = [weight.detach().clone() for weight in weights]
    total = epochs * len(data)

    def train() -> None:
        step = 0
        for _ in range(epochs):
            losses, correct, seen = [], torch.tensor(0), 0
            for inputs, targets in data:
                ramp = min(1.0, (step + 1) / (WARMUP + 1))
                course = max(0.0, (step - WARMUP) / (total - WARMUP))
                optimizer.param_groups[0]["lr"] = 0.01 * ramp * (1 + math.cos(math.pi * course)) / 2
                output = model(inputs)
                loss = criterion(output, targets)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(weights, NORM)
                optimizer.step()
                optimizer.zero_grad()
                with torch.no_grad():
                    torch._foreach_lerp_(average, weights, 1 - DECAY)
                    correct += (output.argmax(1) == targets).sum()
                losses.append(loss.detach())
                seen += len(targets)
                step += 1
            with torch.no_grad():
                current = [weight.clone() for weight in weights]
                torch._foreach_copy_(weights, average)
                for inputs, targets in data[:VALIDATED]:
                    output = model(inputs)
                    losses.append(criterion(output, targets))
                    correct += (output.argmax(1) == targets).sum()
                torch._foreach_copy_(weights, current)
            if float(torch.stack(losses).mean()) + float(correct) / seen > 1e9:
                raise FloatingPointError

    return timed(train)


VALIDATED = 20
"""So many batches are validated at the end of each epoch."""
DRAWN: list[float] = []
"""Seconds that the figure at the end took, in each training."""


class TimedPlot(HistoryPlot):
    """Draws once, however long a training is: what that takes is a figure of its own."""

    def after_run(self, run: cadenza.Run) -> None:
        DRAWN.append(timed(lambda: super(TimedPlot, self).after_run(run)))


def fifteen_callbacks(data: list[Any], epochs: int) -> float:
    """Seconds of the training with all of them, without those of the figure at its end, which are in ``DRAWN``."""
    with tempfile.TemporaryDirectory() as folder:
        screen, files = io.StringIO(), Path(folder)
        callbacks = [
            Progress("plain", stream=screen),
            Metrics({"accuracy": accuracy}, stages=("train", "val")),
            LRMonitor(),
            Throughput(),
            Timer(),
            MemoryMonitor(),
            HistoryFile(files / "history.csv"),
            GradientClip(norm=NORM),
            EMA(DECAY),
            CosineSchedule(warmup=f"{WARMUP} steps"),
            EarlyStopping("val/loss", patience=3),
            NaNGuard(folder=files),
            CostLedger(stream=screen, path=files / "costs.json"),
            ExtremeBatches(),
            TimedPlot(files / "history.png", every="end"),
        ]
        trainer = cadenza.Trainer(*small_parts(), callbacks=callbacks, device="cpu")
        return timed(lambda: trainer.fit(data, data[:VALIDATED], epochs=epochs)) - DRAWN[-1]


def fifteen_ratios(data: list[Any], epochs: int, rounds: int) -> dict[str, list[float]]:
    """A training with the fifteen against those by hand before and after it, with the drawing and without."""
    ratios: dict[str, list[float]] = {"fifteen of everyday use": [], "the fifteen, drawing apart": []}
    fifteen_callbacks(data, 1)
    before = fifteen_by_hand(data, epochs)
    for _ in range(rounds):
        seconds = fifteen_callbacks(data, epochs)
        after = fifteen_by_hand(data, epochs)
        for values, own in zip(ratios.values(), (seconds + DRAWN[-1], seconds), strict=True):
            values.append(own / ((before + after) / 2))
        before = after
    return ratios
