"""What ``fit`` does around the steps, bit-equal to a loop by hand: several fits, steps, validation in between."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from cadenza import Callback, MainCallback, Trainer
from cadenza.testing import Recorder, tiny_classifier, tiny_loader

WATCHED = pytest.mark.parametrize("callbacks", [list, lambda: [Recorder()]], ids=["bare", "opened"])


def model_with_everything() -> nn.Module:
    """Dropout, a BatchNorm that learns and one that is frozen."""
    plain = tiny_classifier()
    model = nn.Sequential(plain[0], nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.BatchNorm1d(8), plain[2])
    model[4].eval()
    return model


def made(callbacks: list[Callback] | None = None, model: nn.Module | None = None) -> tuple[Trainer, SGD]:
    model = model_with_everything() if model is None else model
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    schedule = StepLR(optimizer, 1, 0.7)
    criterion = nn.CrossEntropyLoss()
    return Trainer(model, optimizer, criterion, scheduler=schedule, callbacks=callbacks or [], device="cpu"), optimizer


def assert_equal_models(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert [module.training for module in one.modules()] == [module.training for module in other.modules()]


def step_by_hand(model: nn.Module, optimizer: SGD, batch: Any) -> None:
    x, y = batch
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def validate_by_hand(model: nn.Module, loader: Any) -> list[Tensor]:
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(x), y) for x, y in loader]
    model.train()
    for module, training in flags:
        module.training = training
    return losses


@WATCHED
def test_two_fits_in_a_row_are_one_longer_fit(callbacks: Callable[[], list[Callback]]) -> None:
    torch.manual_seed(3)
    once, _ = made()
    once.fit(tiny_loader(20, shuffle=True), tiny_loader(10), epochs=5)
    state = torch.get_rng_state()

    torch.manual_seed(3)
    twice, _ = made(callbacks())
    twice.fit(tiny_loader(20, shuffle=True), tiny_loader(10), epochs=2)
    history = twice.fit(tiny_loader(20, shuffle=True), tiny_loader(10), epochs=3)

    assert_equal_models(once.model, twice.model)
    assert torch.equal(state, torch.get_rng_state())
    assert history["train/loss"] == once.history["train/loss"]
    assert history["val/loss"] == once.history["val/loss"]
    assert [row["epoch"] for row in history.epochs] == [0, 1, 2, 3, 4]


@WATCHED
def test_so_many_steps(callbacks: Callable[[], list[Callback]]) -> None:
    torch.manual_seed(5)
    hand, optimizer = made()
    schedule, steps = StepLR(optimizer, 1, 0.7), 0
    for _ in range(3):
        for batch in tiny_loader(20, shuffle=True):
            if steps < 7:
                step_by_hand(hand.model, optimizer, batch)
                steps += 1
        if steps < 7:
            schedule.step()

    torch.manual_seed(5)
    trainer, _ = made(callbacks())
    trainer.fit(tiny_loader(20, shuffle=True), steps=7)
    assert_equal_models(trainer.model, hand.model)
    assert (trainer.clock.steps, trainer.clock.batches, trainer.clock.epochs) == (7, 7, 2)


def test_steps_that_end_with_the_epoch_count_it() -> None:
    trainer, optimizer = made()
    trainer.fit(tiny_loader(20), steps=3)
    assert trainer.clock.epochs == 1
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.07)


@WATCHED
def test_validation_every_so_many_steps(callbacks: Callable[[], list[Callback]]) -> None:
    torch.manual_seed(7)
    hand, optimizer = made()
    schedule, steps, losses = StepLR(optimizer, 1, 0.7), 0, []
    for _ in range(2):
        for batch in tiny_loader(20, shuffle=True):
            step_by_hand(hand.model, optimizer, batch)
            steps += 1
            if steps % 2 == 0:
                losses.append(validate_by_hand(hand.model, tiny_loader(8)))
        schedule.step()

    torch.manual_seed(7)
    trainer, _ = made(callbacks())
    history = trainer.fit(tiny_loader(20, shuffle=True), tiny_loader(8), epochs=2, validate_every="2 steps")
    assert_equal_models(trainer.model, hand.model)
    assert history["val/loss"] == [float(loss) for (loss,) in losses]


def test_validation_does_not_change_the_training() -> None:
    """Ready batches draw no random numbers, so a fit with validation is the fit without it."""
    train, val = list(tiny_loader(20)), list(tiny_loader(10))
    results = []
    for val_loader in (None, val):
        torch.manual_seed(9)
        trainer, _ = made()
        trainer.fit(train, val_loader, epochs=3)
        results.append(trainer.model)
    assert_equal_models(*results)


def test_a_frozen_submodule_stays_frozen() -> None:
    trainer, _ = made()
    frozen = trainer.model[4]
    before = frozen.running_mean.clone()
    trainer.fit(tiny_loader(20), tiny_loader(10), epochs=2)
    assert torch.equal(frozen.running_mean, before)
    assert not frozen.training
    assert trainer.model[1].training
    assert int(trainer.model[1].num_batches_tracked) == 6


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_each_flag_is_as_before(verb: str) -> None:
    trainer, _ = made()
    trainer.model[3].eval()
    flags = [module.training for module in trainer.model.modules()]
    state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    getattr(trainer, verb)(tiny_loader(10))
    assert [module.training for module in trainer.model.modules()] == flags
    assert all(torch.equal(value, state[name]) for name, value in trainer.model.state_dict().items())


class Merging(nn.Module):
    """An adapter that is merged into its layer for evaluation: its ``train()`` does more than set a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.base = tiny_classifier()[0].requires_grad_(False)
        self.added = nn.Parameter(torch.full((8, 4), 0.01))
        self.merged = False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if mode == self.merged:
            self.base.weight.data += -self.added.data if mode else self.added.data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) if self.merged else self.base(x) + x @ self.added.T


@WATCHED
def test_a_train_method_that_does_more_than_set_flags(
    callbacks: Callable[[], list[Callback]],
) -> None:
    hand, optimizer = made(model=nn.Sequential(Merging(), nn.ReLU(), tiny_classifier()[2]))
    schedule = StepLR(optimizer, 1, 0.7)
    for _ in range(3):
        for batch in tiny_loader(20):
            step_by_hand(hand.model, optimizer, batch)
        validate_by_hand(hand.model, tiny_loader(10))
        schedule.step()

    trainer, _ = made(callbacks(), model=nn.Sequential(Merging(), nn.ReLU(), tiny_classifier()[2]))
    trainer.fit(tiny_loader(20), tiny_loader(10), epochs=3)
    assert not trainer.model[0].merged
    assert_equal_models(trainer.model, hand.model)


def test_inference_mode_gives_the_same_numbers() -> None:
    plain, _ = made()
    fast, _ = made([MainCallback(inference_mode=True)])
    modes: dict[str, bool] = {}
    fast.on("before_forward")(lambda run: modes.update({run.stage: torch.is_inference_mode_enabled()}))
    for trainer in (plain, fast):
        torch.manual_seed(13)
        trainer.fit(tiny_loader(20), tiny_loader(10), epochs=2)
    assert_equal_models(plain.model, fast.model)
    assert plain.history["val/loss"] == fast.history["val/loss"]
    assert modes == {"train": False, "val": True}


def test_gradients_left_by_others_do_not_enter_the_first_step() -> None:
    clean, _ = made()
    dirty, _ = made()
    for parameter in dirty.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for trainer in (clean, dirty):
        torch.manual_seed(15)
        trainer.fit(tiny_loader(20), epochs=1)
    assert_equal_models(clean.model, dirty.model)


def test_a_seed_makes_the_first_fit_repeat() -> None:
    results = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        model = model_with_everything()
        trainer = Trainer(model, SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), device="cpu", seed=42)
        trainer.fit(tiny_loader(20, shuffle=True), epochs=2)
        results.append(model)
    assert_equal_models(*results)


def test_a_seed_also_holds_when_the_model_was_validated_first() -> None:
    results = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        model = model_with_everything()
        trainer = Trainer(model, SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), device="cpu", seed=42)
        trainer.validate(tiny_loader(10))
        trainer.fit(tiny_loader(20, shuffle=True), epochs=2)
        results.append(model)
    assert_equal_models(*results)


def test_a_weight_of_the_loss_is_for_one_iteration_only() -> None:
    """An own loop that weights a batch and then leaves it out does not weight the next one."""
    batches = list(tiny_loader(20))
    expected, _ = made()
    weighted, _ = made()
    torch.manual_seed(17)
    expected.fit(batches[1:], epochs=1)
    torch.manual_seed(17)
    with weighted.run(epochs=1) as run:
        for _ in run.epochs():
            for _ in run.train(batches):
                if run.batch_idx == 0:
                    run.loss_weight = 0.5
                else:
                    run.train_step()
    assert_equal_models(expected.model, weighted.model)


def test_a_batch_played_again_has_the_same_weight() -> None:
    trainer, _ = made(model=tiny_classifier())
    gradients: list[Tensor] = []
    weight = trainer.model[0].weight
    trainer.on("before_train_iter")(lambda run: setattr(run, "loss_weight", 0.25))

    @trainer.on("before_step")
    def again(run: Any) -> None:
        gradients.append(weight.grad.clone())
        run.recompute()
        gradients.append(weight.grad.clone())

    trainer.fit(list(tiny_loader(8)), epochs=1)
    assert torch.equal(*gradients)


def test_a_second_forward_of_a_batch_has_its_own_loss() -> None:
    trainer, _ = made(model=tiny_classifier())
    losses: list[float] = []

    def nothing(run: Any) -> None:
        run.output = run.model(run.inputs) * 0

    with trainer.run(epochs=1) as run:
        for _ in run.epochs():
            for _ in run.train(list(tiny_loader(8))):
                run.train_step()
                run.forward(nothing)
                losses.append(run.loss.item())
    assert losses == [pytest.approx(math.log(3))]
