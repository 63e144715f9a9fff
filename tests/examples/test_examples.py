"""Every example runs as it stands, and the basic ones do exactly what a loop by hand does."""

from __future__ import annotations

import ast
import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from ..processes import run

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples").glob("*.py"))
EPOCHS = 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_runs_and_prints(path: Path, tmp_path: Path) -> None:
    small = ["--epochs", "1"] if '"--epochs"' in path.read_text() else []
    done = run(path, *small, cwd=tmp_path, strict=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_says_first_what_is_shown(path: Path) -> None:
    said = ast.get_docstring(ast.parse(path.read_text()))
    assert said is not None
    assert said.split("\n")[0].endswith(".")


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def mean_of(losses: list[Any], sizes: list[int]) -> float:
    weights = torch.tensor(sizes, dtype=torch.float64)
    return float((torch.stack(losses).detach().double() * weights).sum() / weights.sum())


def step(optimizer: Any) -> None:
    optimizer.step()
    optimizer.zero_grad()


def test_own_loss(play: Any) -> None:
    _, trainer = play("01_own_loss", epochs=EPOCHS)
    model, (adam,) = trainer.begin_again()
    means = []
    for _ in range(EPOCHS):
        losses, sizes = [], []
        for images, targets in trainer.loaders["train"]:
            parts = model(images, targets)
            loss = parts["place"] + parts["light"]
            loss.backward()
            step(adam)
            losses.append(loss)
            sizes.append(len(images))
        means.append(mean_of(losses, sizes))
    assert_equal(trainer.model, model)
    assert trainer.history["train/loss"] == means


def test_learning_rate_by_hand(play: Any) -> None:
    _, trainer = play("02_learning_rate_by_hand", epochs=EPOCHS)
    model, (sgd,) = trainer.begin_again()
    iteration, rates = 0, []
    for epoch in range(EPOCHS):
        for inputs, targets in trainer.loaders["train"]:
            rate = 1e-6 + (0.1 - 1e-6) * iteration / (16 * 2) if epoch < 2 else 0.1 * 0.8 ** (epoch - 2)
            sgd.param_groups[0]["lr"] = rate
            rates.append(rate)
            mse_loss(model(inputs), targets).backward()
            step(sgd)
            iteration += 1
    assert_equal(trainer.model, model)
    assert [row["lr"] for row in trainer.history.iters][:-1] == rates[1:]


def test_schedule(play: Any) -> None:
    _, trainer = play("03_schedule", epochs=EPOCHS)
    model, (sgd,) = trainer.begin_again()
    iteration = 0
    for _ in range(EPOCHS):
        for inputs, targets in trainer.loaders["train"]:
            sgd.param_groups[0]["lr"] = 0.2 * (1 + math.cos(math.pi * iteration / (EPOCHS * 16))) / 2
            mse_loss(model(inputs), targets).backward()
            step(sgd)
            iteration += 1
    assert_equal(trainer.model, model)


def test_early_stop(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, trainer = play("04_early_stop")
    model, (adam,) = trainer.begin_again()
    losses: list[float] = []
    while len(losses) < 4 or min(losses[-3:]) < min(losses[:-3]):
        for inputs, targets in trainer.loaders["train"]:
            cross_entropy(model(inputs), targets).backward()
            step(adam)
        with torch.no_grad():
            losses.append(*(float(cross_entropy(model(x), y).double()) for x, y in trainer.loaders["val"]))
    assert trainer.history["val/loss"] == losses
    assert_equal(trainer.model, model)
    assert f"{len(losses)} of 100 epochs, the best was epoch {len(losses) - 4}" in capsys.readouterr().out


def test_wrapped_model(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, trainer = play("05_wrapped_model", epochs=EPOCHS)
    model, (sgd,) = trainer.begin_again()
    device = next(trainer.model.parameters()).device
    wrapped = nn.DataParallel(model.to(device))
    for _ in range(EPOCHS):
        for inputs, targets in trainer.loaders["train"]:
            cross_entropy(wrapped(inputs.to(device)), targets.to(device)).backward()
            step(sgd)
    assert_equal(trainer.model, model)
    assert "is a DataParallel, the user's own model a Sequential" in capsys.readouterr().out


def test_clipping(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, trainer = play("06_clipping")
    model, (sgd,) = trainer.begin_again()
    for _ in range(15):
        for inputs, targets in trainer.loaders["train"]:
            mse_loss(model(inputs), targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            step(sgd)
    assert_equal(trainer.model, model)
    assert "without clipping: loss nan" in capsys.readouterr().out


def test_accumulation(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, trainer = play("07_accumulation", epochs=EPOCHS)
    model, (sgd,) = trainer.begin_again()
    for _ in range(EPOCHS):
        for index, (inputs, targets) in enumerate(trainer.loaders["train"]):
            (cross_entropy(model(inputs), targets) / 4).backward()
            if index % 4 == 3:
                step(sgd)
    assert_equal(trainer.model, model)
    apart = float(capsys.readouterr().out.split("any weight:")[1])
    assert apart < 1e-4  # not zero: a sum of four means is rounded otherwise than one mean


def test_two_optimizers(play: Any) -> None:
    _, trainer = play("08_two_optimizers", epochs=EPOCHS)
    model, optimizers = trainer.begin_again()
    for _ in range(EPOCHS):
        for index, (inputs, targets) in enumerate(trainer.loaders["train"]):
            cross_entropy(model(inputs), targets).backward()
            optimizers[index % 2].step()
            for optimizer in optimizers:
                optimizer.zero_grad()
    assert_equal(trainer.model, model)


def test_own_loop(play: Any) -> None:
    module, trainer = play("09_own_loop", epochs=EPOCHS)
    model, (adam,) = trainer.begin_again()
    copied = copy.deepcopy((model, adam))
    accuracies = []
    for _ in range(EPOCHS):
        for inputs, targets in trainer.loaders["train"]:
            cross_entropy(model(inputs), targets).backward()
            step(adam)
        correct = sum((model(x).argmax(1) == y).sum() for x, y in trainer.loaders["val"])
        accuracies.append(float(correct / 256))
    assert_equal(trainer.model, model)
    assert trainer.history["val/accuracy"] == accuracies

    torch.set_rng_state(trainer.rng)
    fitted = module.Trainer(copied[0], copied[1], nn.CrossEntropyLoss(), callbacks=[module.Accuracy()], device="cpu")
    fitted.fit(trainer.loaders["train"], trainer.loaders["val"], epochs=EPOCHS)
    assert fitted.history.epochs == trainer.history.epochs
    assert_equal(fitted.model, trainer.model)
