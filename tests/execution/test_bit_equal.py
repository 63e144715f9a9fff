"""Weights, losses, optimizer state and random numbers are bit-equal to a hand-written loop, whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, IterableDataset

import cadenza
from cadenza.testing import Recorder, tiny_classifier, tiny_data, tiny_loader

EPOCHS = 3


class Losses(cadenza.Callback):
    """Takes the loss of each batch outside the step, which therefore stays one function."""

    def __init__(self) -> None:
        self.train: list[Tensor] = []
        self.val: list[Tensor] = []

    def after_train_iter(self, run: cadenza.Run) -> None:
        self.train.append(run.loss.detach().clone())

    def after_val_iter(self, run: cadenza.Run) -> None:
        self.val.append(run.loss.detach().clone())


class OwnForward(cadenza.MainCallback):
    """The same computation written by a user, so that the library's own step is not taken."""

    def on_iter_forward(self, run: cadenza.Run) -> None:
        inputs, _ = run.batch
        run.output = run.model(inputs)


@dataclass
class Setup:
    """One training: fresh objects for each way of doing it."""

    model: nn.Module
    optimizers: list[Optimizer]
    loader: Any
    per_epoch: list[Any] = field(default_factory=list)
    per_step: list[Any] = field(default_factory=list)
    val_loader: Any = None


class Stream(IterableDataset):
    """Data that does not know its length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(tiny_data(20))


def with_dropout() -> nn.Module:
    plain = tiny_classifier()
    return nn.Sequential(plain[0], nn.ReLU(), nn.Dropout(0.3), plain[2])


def with_batch_norm() -> nn.Module:
    plain = tiny_classifier()
    return nn.Sequential(plain[0], nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.BatchNorm1d(8), plain[2])


def sgd_momentum() -> Setup:
    model = tiny_classifier()
    return Setup(model, [SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)], tiny_loader(20))


def adamw() -> Setup:
    model = tiny_classifier()
    return Setup(model, [AdamW(model.parameters(), lr=0.01, weight_decay=0.1)], tiny_loader(20))


def two_optimizers() -> Setup:
    model = tiny_classifier()
    optimizers = [SGD(model[0].parameters(), lr=0.1, momentum=0.5), AdamW(model[2].parameters(), lr=0.01)]
    return Setup(model, optimizers, tiny_loader(20), per_epoch=[StepLR(optimizers[0], 1, 0.5)])


def schedule_per_epoch() -> Setup:
    setup = adamw()
    return replace(setup, per_epoch=[CosineAnnealingLR(setup.optimizers[0], EPOCHS)])


def schedule_per_step() -> Setup:
    setup = sgd_momentum()
    return replace(setup, per_step=[OneCycleLR(setup.optimizers[0], 0.2, total_steps=EPOCHS * 3 + 1)])


def dropout() -> Setup:
    model = with_dropout()
    return Setup(model, [SGD(model.parameters(), lr=0.1)], tiny_loader(20))


def iterable_data() -> Setup:
    return replace(sgd_momentum(), loader=DataLoader(Stream(), batch_size=8))


def shuffled_data() -> Setup:
    return replace(dropout(), loader=tiny_loader(20, shuffle=True))


def batch_norm_with_validation() -> Setup:
    model = with_batch_norm()
    return Setup(model, [AdamW(model.parameters(), lr=0.01)], tiny_loader(20, shuffle=True), val_loader=tiny_loader(10))


def plateau() -> Setup:
    model = with_batch_norm()
    optimizer = SGD(model.parameters(), lr=0.5)
    schedule = ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    return Setup(model, [optimizer], tiny_loader(20), per_epoch=[schedule], val_loader=tiny_loader(10, seed=1))


def lbfgs() -> Setup:
    model = with_dropout()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    return Setup(model, [optimizer], tiny_loader(20))


# The loop as one writes it by hand -----------------------------------------------------------------------------------


def mean_of(losses: list[Tensor], sizes: list[int]) -> float:
    weights = torch.tensor(sizes, dtype=torch.float64)
    return float((torch.stack(losses).double() * weights).sum() / sum(sizes))


def validated_by_hand(setup: Setup, seen: Losses) -> float:
    setup.model.eval()
    with torch.no_grad():
        batches = [(nn.functional.cross_entropy(setup.model(x), y), len(y)) for x, y in setup.val_loader]
    setup.model.train()
    seen.val += [loss for loss, _ in batches]
    return mean_of([loss for loss, _ in batches], [size for _, size in batches])


def by_hand(setup: Setup, seen: Losses) -> list[float]:
    means = []
    for _ in range(EPOCHS):
        epoch, sizes, val_loss = [], [], 0.0
        for x, y in setup.loader:
            loss = one_step_by_hand(setup, x, y)
            for scheduler in setup.per_step:
                scheduler.step()
            epoch.append(loss.detach())
            sizes.append(len(y))
        seen.train += epoch
        means.append(mean_of(epoch, sizes))
        if setup.val_loader is not None:
            val_loss = validated_by_hand(setup, seen)
        for scheduler in setup.per_epoch:
            scheduler.step(*([val_loss] if isinstance(scheduler, ReduceLROnPlateau) else []))
    return means


def one_step_by_hand(setup: Setup, x: Tensor, y: Tensor) -> Tensor:
    def closure() -> Tensor:
        for optimizer in setup.optimizers:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(setup.model(x), y)
        loss.backward()
        return loss

    if isinstance(setup.optimizers[0], torch.optim.LBFGS):
        return setup.optimizers[0].step(closure)
    loss = closure()
    for optimizer in setup.optimizers:
        optimizer.step()
    return loss


# The same with Cadenza -----------------------------------------------------------------------------------------------

Way = Callable[[Setup, Losses], cadenza.Trainer]


def trainer_for(setup: Setup, *callbacks: cadenza.Callback, main: type = cadenza.MainCallback) -> cadenza.Trainer:
    return cadenza.Trainer(
        setup.model,
        setup.optimizers,
        nn.CrossEntropyLoss(),
        scheduler=setup.per_epoch + setup.per_step,
        callbacks=[main(lr_every="iter" if setup.per_step else "epoch"), *callbacks],
        device="cpu",
    )


def fit(trainer: cadenza.Trainer, setup: Setup) -> cadenza.Trainer:
    trainer.fit(setup.loader, setup.val_loader, epochs=EPOCHS)
    return trainer


def own_loop(trainer: cadenza.Trainer, setup: Setup, step: Callable[[cadenza.Run], Any]) -> cadenza.Trainer:
    with trainer.run(epochs=EPOCHS) as run:
        for _ in run.epochs():
            for _ in run.train(setup.loader):
                step(run)
            if setup.val_loader is not None:
                for _ in run.validate(setup.val_loader):
                    run.eval_step()
    return trainer


def open_verbs(run: cadenza.Run) -> None:
    assert run.forward()
    assert run.backward()
    assert run.step()


WAYS: dict[str, Way] = {
    "bare": lambda setup, seen: fit(trainer_for(setup), setup),
    "opened": lambda setup, seen: fit(trainer_for(setup, Recorder(), seen), setup),
    "own behaviour": lambda setup, seen: fit(trainer_for(setup, seen, main=OwnForward), setup),
    "own loop": lambda setup, seen: own_loop(trainer_for(setup, seen), setup, cadenza.Run.train_step),
    "open verbs": lambda setup, seen: own_loop(trainer_for(setup, seen), setup, open_verbs),
    "open verbs, opened": lambda setup, seen: own_loop(trainer_for(setup, seen, Recorder()), setup, open_verbs),
}
SETUPS = [
    sgd_momentum,
    adamw,
    two_optimizers,
    schedule_per_epoch,
    schedule_per_step,
    dropout,
    iterable_data,
    shuffled_data,
    batch_norm_with_validation,
    plateau,
    lbfgs,
]


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Equal to the last bit, in every tensor and number inside."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where} {key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for left, right in zip(one, other, strict=True):
            assert_same(left, right, where)
    elif isinstance(one, Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    else:
        assert one == other, where


def state_of(setup: Setup) -> dict[str, Any]:
    return {
        "model": setup.model.state_dict(),
        "flags": [module.training for module in setup.model.modules()],
        "optimizers": [optimizer.state_dict() for optimizer in setup.optimizers],
        "epochs of schedulers": [scheduler.last_epoch for scheduler in setup.per_epoch + setup.per_step],
        "random": torch.get_rng_state(),
    }


@pytest.mark.parametrize("make", SETUPS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_equal_to_the_loop_by_hand(make: Callable[[], Setup], way: str) -> None:
    expected, hand = make(), Losses()
    torch.manual_seed(11)
    means = by_hand(expected, hand)
    wanted = state_of(expected)

    setup, seen = make(), Losses()
    torch.manual_seed(11)
    trainer = WAYS[way](setup, seen)

    assert_same(state_of(setup), wanted)
    assert trainer.history["train/loss"] == means
    assert (trainer.clock.epochs, trainer.clock.batches, trainer.clock.steps) == (EPOCHS, EPOCHS * 3, EPOCHS * 3)
    assert trainer.clock.samples == EPOCHS * 20
    if way != "bare":  # nobody is there to see them; their mean is in the history
        assert_same(seen.train, hand.train)
        assert_same(seen.val, hand.val)
