"""Harder techniques written in the grammar: each is bit-equal to a loop by hand, and does what it promises."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, kl_div, log_softmax

EPOCHS = 2


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def mean_of(losses: list[Tensor], sizes: list[int]) -> float:
    weights = torch.tensor(sizes, dtype=torch.float64)
    return float((torch.stack(losses).detach().double() * weights).sum() / weights.sum())


def test_sam_equals_a_loop_by_hand(play: Any) -> None:
    _, trainer = play("20_sam", epochs=EPOCHS)
    model, (adam,) = trainer.begin_again()
    means = []
    for _ in range(EPOCHS):
        losses, sizes = [], []
        for inputs, targets in trainer.loaders["train"]:
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            with torch.no_grad():
                length = torch.stack([weight.grad.norm() for weight in model.parameters()]).norm()
                kept = [weight.clone() for weight in model.parameters()]
                for weight in model.parameters():
                    weight.add_(weight.grad * (0.3 / (length + 1e-12)))
            adam.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            with torch.no_grad():
                for weight, value in zip(model.parameters(), kept, strict=True):
                    weight.copy_(value)
            adam.step()
            adam.zero_grad()
            losses.append(loss)
            sizes.append(len(inputs))
        means.append(mean_of(losses, sizes))
    assert_equal(trainer.model, model)
    assert trainer.history["train/loss"] == means
    assert trainer.clock.steps == trainer.clock.batches


def test_sam_ends_in_a_flatter_place(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    play("20_sam")
    rises = [float(rise) for rise in re.findall(r"raises by (\d+\.\d+)", capsys.readouterr().out)]
    assert len(rises) == 2
    assert rises[1] < rises[0] / 2


def test_a_gradient_penalty_equals_a_loop_by_hand(play: Any) -> None:
    _, trainer = play("21_gradient_penalty", epochs=EPOCHS)
    model, (adam,) = trainer.begin_again()
    means, val_means = [], []
    for _ in range(EPOCHS):
        losses, sizes = [], []
        for images, targets in trainer.loaders["train"]:
            inputs = images.requires_grad_()
            loss = cross_entropy(model(inputs), targets)
            (slopes,) = torch.autograd.grad(loss, inputs, create_graph=True)
            loss = loss + 0.1 * (slopes * len(inputs)).square().sum(1).mean()
            loss.backward()
            adam.step()
            adam.zero_grad()
            losses.append(loss)
            sizes.append(len(inputs))
        means.append(mean_of(losses, sizes))
        with torch.no_grad():
            val_means.append(mean_of([cross_entropy(model(x), y) for x, y in trainer.loaders["val"]], [597]))
    assert_equal(trainer.model, model)
    assert trainer.history["train/loss"] == means
    assert trainer.history["val/loss"] == val_means


def test_a_model_with_the_penalty_is_harder_to_fool(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    play("21_gradient_penalty")
    read = [int(percent) for percent in re.findall(r"reads (\d+)%", capsys.readouterr().out)]
    assert len(read) == 2
    assert read[1] > read[0] + 10


def test_a_gan_equals_a_loop_by_hand(play: Any) -> None:
    _, trainer = play("22_gan", epochs=EPOCHS)
    model, (for_critic, for_maker) = trainer.begin_again()
    maker, critic = model.maker, model.critic
    means, maker_losses = [], []
    for _ in range(EPOCHS):
        losses, sizes = [], []
        for (real,) in trainer.loaders["train"]:
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            made = maker(torch.randn(len(real), 4))
            says_real, says_made = critic(real), critic(made.detach())
            loss = binary_cross_entropy_with_logits(says_real, ones)
            loss = loss + binary_cross_entropy_with_logits(says_made, zeros)
            loss.backward()
            for_critic.step()
            maker_loss = binary_cross_entropy_with_logits(critic(made), ones)
            maker_loss.backward()
            for_maker.step()
            for_critic.zero_grad()
            for_maker.zero_grad()
            losses.append(loss)
            sizes.append(len(real))
            maker_losses.append(float(maker_loss.detach()))
        means.append(mean_of(losses, sizes))
    assert_equal(trainer.model, model)
    assert trainer.history["train/loss"] == means
    assert [row["train/maker_loss"] for row in trainer.history.iters] == maker_losses
    assert trainer.clock.steps == trainer.clock.batches


def test_a_gan_makes_points_where_the_real_ones_are(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    play("22_gan")
    real, made = (
        [float(number) for number in re.findall(r"[+-]?\d+\.\d+", line)]
        for line in capsys.readouterr().out.splitlines()
    )
    assert made[:2] == pytest.approx(real[:2], abs=0.4)
    assert made[2:] == pytest.approx(real[2:], rel=0.6)


def test_distillation_equals_a_loop_by_hand(play: Any) -> None:
    module, trainer = play("23_distillation", epochs=EPOCHS)
    (teacher,) = (callback.teacher for callback in trainer.callbacks if isinstance(callback, module.Distillation))
    model, (adam,) = trainer.begin_again()
    means = []
    for _ in range(EPOCHS):
        losses, sizes = [], []
        for inputs, targets in trainer.loaders["train"]:
            output = model(inputs)
            loss = cross_entropy(output, targets)
            with torch.no_grad():
                answers = teacher(inputs)
            soft, wanted = log_softmax(output / 3.0, dim=1), log_softmax(answers / 3.0, dim=1)
            distance = kl_div(soft, wanted, reduction="batchmean", log_target=True) * 3.0**2
            loss = (1 - 0.9) * loss + 0.9 * distance
            loss.backward()
            adam.step()
            adam.zero_grad()
            losses.append(loss)
            sizes.append(len(inputs))
        means.append(mean_of(losses, sizes))
    assert_equal(trainer.model, model)
    assert trainer.history["train/loss"] == means
    assert all(weight.grad is None for weight in teacher.parameters())


def test_a_taught_student_reads_more_digits(play: Any, capsys: pytest.CaptureFixture[str]) -> None:
    play("23_distillation")
    teacher, alone, taught = (float(share) for share in re.findall(r"(\d+\.\d)%", capsys.readouterr().out))
    assert alone + 2 < taught < teacher
