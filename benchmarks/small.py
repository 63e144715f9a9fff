"""The small perceptron of ``peers.py``: a DataLoader over a TensorDataset, Adam, accuracy, ten callbacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from measure import timed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import cadenza
from cadenza.callbacks import Metrics, accuracy

SAMPLES, BATCH, CALLBACKS = 8192, 128, 10


def parts() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    layers = nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    model = nn.Sequential(*layers)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3), nn.CrossEntropyLoss()


def tensors() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(SAMPLES, 784), torch.randint(0, 10, (SAMPLES,))


def loader(samples: tuple[Tensor, Tensor]) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*samples), batch_size=BATCH, shuffle=True)


def by_hand(samples: tuple[Tensor, Tensor], epochs: int) -> float:
    """The loop as one would write it, with loss and accuracy of each epoch."""
    model, optimizer, criterion = parts()
    batches = loader(samples)

    def train() -> None:
        for _ in range(epochs):
            losses, correct, seen = torch.tensor(0.0), torch.tensor(0), 0
            for inputs, targets in batches:
                output = model(inputs)
                loss = criterion(output, targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses += loss.detach() * len(targets)
                correct += (output.detach().argmax(1) == targets).sum()
                seen += len(targets)
            float(losses / seen), float(correct / seen)

    return timed(train)


class Idle(cadenza.Callback):
    def before_train_iter(self, run: cadenza.Run) -> None: ...

    def after_train_iter(self, run: cadenza.Run) -> None: ...


def with_cadenza(samples: tuple[Tensor, Tensor], epochs: int, execution: Any = "eager") -> float:
    callbacks = [Metrics({"accuracy": accuracy}, stages=("train",)), *(Idle() for _ in range(CALLBACKS))]
    trainer = cadenza.Trainer(*parts(), callbacks=callbacks, device="cpu", execution=execution)
    return timed(lambda: trainer.fit(loader(samples), epochs=epochs))


# The tiny one, whose step is compiled ---------------------------------------------------------------------------------


def tiny_parts() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()


def tiny_batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(32, 16), torch.randint(0, 2, (32,))) for _ in range(steps)]


def tiny_by_hand(data: list[Any], epochs: int) -> Iterator[None]:
    model, optimizer, criterion = tiny_parts()
    for _ in range(epochs):
        for inputs, targets in data:
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        yield


def tiny_compiled(data: list[Any], epochs: int) -> Iterator[None]:
    trainer = cadenza.Trainer(*tiny_parts(), device="cpu", execution="compiled")
    with trainer.run(epochs=epochs) as run:
        for _ in run.epochs():
            for _ in run.train(data):
                run.train_step()
            yield
