"""Trainer(scheduler_every=...): when schedulers are stepped, and what is said of one that counts something else."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from cadenza import Callback, CallbackError, MainCallback, Trainer
from cadenza.callbacks import Accumulate, Checkpoint, Precision, Schedule
from cadenza.testing import tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()


def sgd(parameters, lr=1.0):
    return torch.optim.SGD(parameters, lr=lr)


def made(*callbacks, schedule=lambda optimizer: ExponentialLR(optimizer, 0.5), optimizer=None, **options):
    model = options.pop("model", None) or tiny_classifier()
    optimizer = optimizer or sgd(model.parameters())
    given = {"callbacks": list(callbacks), "device": "cpu", **options}
    return Trainer(model, optimizer, LOSS, scheduler=schedule(optimizer), **given)


def rate(trainer, optimizer=0):
    return trainer._training.optimizers[optimizer].param_groups[0]["lr"]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def by_hand(trainer, **limits):
    with trainer.run(**limits) as run:
        for _ in run.epochs():
            for _ in run.train(tiny_loader()):
                run.forward()
                run.backward()
                run.step()


# When they are stepped ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "expected"), [(None, 0.5**2), ("epoch", 0.5**2), ("step", 0.5**6)])
def test_schedulers_follow_epochs_or_steps(every, expected):
    trainer = made(scheduler_every=every)
    trainer.fit(tiny_loader(), epochs=2)
    assert rate(trainer) == pytest.approx(expected)


def test_each_step_has_the_rate_of_a_loop_by_hand():
    seen, by_hand, model = [], [], tiny_classifier()
    optimizer = sgd(model.parameters())
    scheduler = OneCycleLR(optimizer, 0.5, total_steps=6)
    for _ in range(2):
        for inputs, targets in tiny_loader():
            optimizer.zero_grad()
            LOSS(model(inputs), targets).backward()
            by_hand.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
            optimizer.step()
            scheduler.step()
    trainer = made(schedule=lambda optimizer: OneCycleLR(optimizer, 0.5, total_steps=6), scheduler_every="step")
    group = trainer._training.optimizers[0].param_groups[0]
    trainer.on("before_step")(lambda run: seen.append((group["lr"], group["momentum"])))
    trainer.fit(tiny_loader(), epochs=2)
    assert seen == by_hand
    assert same(trainer.model, model)


def test_a_loop_of_ones_own_steps_them_too():
    trainer = made(scheduler_every="step")
    by_hand(trainer, epochs=1)
    assert rate(trainer) == pytest.approx(0.5**3)


class SkipSecond(Callback):
    asks = frozenset({"skip_step"})

    def before_step(self, run):
        if run.batch_idx == 1:
            run.skip_step()


def test_a_step_that_was_skipped_or_held_moves_nothing():
    trainer = made(SkipSecond(), scheduler_every="step")
    trainer.fit(tiny_loader(), epochs=1)
    assert rate(trainer) == pytest.approx(0.5**2)
    trainer = made(Accumulate(2), scheduler_every="step")
    trainer.fit(tiny_loader(), epochs=1)
    assert (trainer.clock.steps, rate(trainer)) == (2, pytest.approx(0.5**2))


class Overflow(Callback):
    def after_backward(self, run):
        if run.batch_idx == 1:
            run.module[0].weight.grad[0, 0] = float("inf")


def test_a_withheld_fp16_step_moves_nothing():
    trainer = made(Precision("fp16"), Overflow(), scheduler_every="step")
    trainer.fit(tiny_loader(), epochs=1)
    assert (trainer.clock.steps, rate(trainer)) == (2, pytest.approx(0.5**2))


def test_each_of_several_optimizers_is_followed():
    model = tiny_classifier()
    optimizers = [sgd(model[0].parameters()), sgd(model[2].parameters())]
    schedules = [ExponentialLR(optimizers[0], 0.5), StepLR(optimizers[1], 2, 0.1)]
    options = {"model": model, "optimizer": optimizers, "schedule": lambda _: schedules}
    trainer = made(scheduler_every="step", **options)
    trainer.fit(tiny_loader(), epochs=1)
    assert (rate(trainer), rate(trainer, 1)) == (pytest.approx(0.5**3), pytest.approx(0.1))


def test_compiled_steps_move_them_as_eager_ones_do():
    ones = [made(scheduler_every="step", execution=execution) for execution in ("eager", "auto")]
    for one in ones:
        one.fit(tiny_loader(), epochs=2)
    assert rate(ones[0]) == rate(ones[1]) == pytest.approx(0.5**6)
    assert same(ones[0].model, ones[1].model)


class FailAt(Callback):
    def __init__(self, step):
        self.step = step

    def after_train_iter(self, run):
        if run.clock.steps == self.step:
            raise InterruptedError


def test_a_resumed_run_has_the_same_rates_and_weights(tmp_path):
    def trainer(*callbacks):
        cosine = partial(CosineAnnealingLR, T_max=6)
        return made(Checkpoint("2 steps", to=tmp_path), *callbacks, schedule=cosine, scheduler_every="step")

    whole = made(schedule=partial(CosineAnnealingLR, T_max=6), scheduler_every="step")
    whole.fit(tiny_loader(), epochs=2)
    with pytest.raises(InterruptedError):
        trainer(FailAt(5)).fit(tiny_loader(), epochs=2)
    resumed, began = trainer(), []
    resumed.on("before_step")(lambda run: began.append(run.clock.steps))
    resumed.fit(tiny_loader(), epochs=2, resume="auto")
    assert rate(resumed) == rate(whole)
    assert same(resumed.model, whole.model)
    assert began == [4, 5]


def test_explain_says_when_they_are_stepped():
    assert "Learning rate: ExponentialLR, stepped once an epoch" in made().explain()
    assert "Learning rate: ExponentialLR, stepped after each step" in made(scheduler_every="step").explain()
    assert "stepped after each step" in made(MainCallback(lr_every="iter")).explain()
    assert "Learning rate" not in Trainer(tiny_classifier(), callbacks=[], device="cpu").explain()


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["iter", "steps", "batch", 1])
def test_another_value_is_refused(value):
    with pytest.raises(ValueError, match='scheduler_every must be "step" or "epoch"'):
        made(scheduler_every=value)


def test_without_a_scheduler_it_is_refused():
    model = tiny_classifier()
    with pytest.raises(ValueError, match="scheduler_every has no effect without scheduler="):
        Trainer(model, sgd(model.parameters()), LOSS, scheduler_every="step", device="cpu")


class PerStep(MainCallback):
    lr_every = "iter"


@pytest.mark.parametrize(
    ("main", "every"),
    [(MainCallback(lr_every="iter"), "epoch"), (MainCallback(lr_every="epoch"), "step"), (PerStep(), "epoch")],
)
def test_a_main_callback_that_says_otherwise_is_refused(main, every):
    with pytest.raises(CallbackError, match=r"lr_every.*scheduler_every.*leave one of them out"):
        made(main, scheduler_every=every)
    trainer = made(scheduler_every=every)
    trainer.add(main)
    with pytest.raises(CallbackError, match="leave one of them out"):
        trainer.fit(tiny_loader(), epochs=1)


@pytest.mark.parametrize("main", [MainCallback(), MainCallback(lr_every="iter"), PerStep()])
def test_a_main_callback_that_says_the_same_or_nothing_is_taken(main):
    trainer = made(copy.copy(main), scheduler_every="step")
    trainer.fit(tiny_loader(), epochs=1)
    assert rate(trainer) == pytest.approx(0.5**3)


def test_a_plateau_cannot_follow_steps():
    trainer = made(schedule=ReduceLROnPlateau, scheduler_every="step")
    with pytest.raises(CallbackError, match=r"ReduceLROnPlateau follows a metric of epochs.*scheduler_every"):
        trainer.fit(tiny_loader(), epochs=1)


# A scheduler that counts steps and is stepped once an epoch ---------------------------------------------------------


def linear(step, *, num_warmup_steps, num_training_steps):
    """As in transformers."""
    if step < num_warmup_steps:
        return step / max(1, num_warmup_steps)
    return max(0.0, (num_training_steps - step) / max(1, num_training_steps - num_warmup_steps))


def transformers_like(optimizer, warmup, total):
    return LambdaLR(optimizer, partial(linear, num_warmup_steps=warmup, num_training_steps=total))


def warmed_up(optimizer, total):
    parts = [LinearLR(optimizer, 0.1, total_iters=2), CosineAnnealingLR(optimizer, total - 2)]
    return SequentialLR(optimizer, parts, milestones=[2])


BY_STEPS = {
    "OneCycleLR": partial(OneCycleLR, max_lr=0.1, total_steps=12),
    "CosineAnnealingLR": partial(CosineAnnealingLR, T_max=12),
    "LambdaLR": partial(transformers_like, warmup=0, total=12),
    "SequentialLR": partial(warmed_up, total=12),
    "ChainedScheduler": lambda o: ChainedScheduler([StepLR(o, 5), LinearLR(o, total_iters=12)]),
}


@pytest.mark.parametrize("name", BY_STEPS)
@pytest.mark.parametrize("limit", [{"epochs": 4}, {"steps": 12}])
def test_a_length_in_steps_is_noticed(name, limit):
    trainer = made(schedule=BY_STEPS[name])
    said = rf'{name} is 12 long.*this fit makes 12 steps.*once an epoch.*scheduler_every="step"'
    with pytest.warns(UserWarning, match=said):
        trainer.fit(tiny_loader(), **limit)


def test_it_is_noticed_in_a_loop_of_ones_own_and_with_accumulation():
    trainer = made(Accumulate(3), schedule=BY_STEPS["CosineAnnealingLR"])
    with pytest.warns(UserWarning, match=r"CosineAnnealingLR is 12 long.*12 batches"):
        by_hand(trainer, epochs=4)


def test_it_is_noticed_before_the_first_step():
    trainer = made(schedule=BY_STEPS["OneCycleLR"])
    with pytest.raises(UserWarning, match="OneCycleLR is 12 long"):
        trainer.fit(tiny_loader(), epochs=4)
    assert trainer.clock.steps == 0


@pytest.mark.parametrize(
    "schedule",
    [partial(CosineAnnealingLR, T_max=4), partial(CosineAnnealingLR, T_max=8), partial(StepLR, step_size=12)],
)
def test_a_length_in_epochs_is_not(schedule, recwarn):
    made(schedule=schedule).fit(tiny_loader(), epochs=4)
    assert not recwarn.list


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_who_says_how_it_counts_is_not_warned(every, recwarn):
    trainer = made(schedule=BY_STEPS["CosineAnnealingLR"], scheduler_every=every)
    trainer.fit(tiny_loader(), epochs=4)
    assert not recwarn.list


def test_who_adjusts_by_hand_is_not_warned(recwarn):
    class Mine(MainCallback):
        def on_lr_adjust(self, run):
            pass

    made(Mine(), schedule=BY_STEPS["CosineAnnealingLR"]).fit(tiny_loader(), epochs=4)
    assert not recwarn.list


# A rate of 0 --------------------------------------------------------------------------------------------------------


def test_a_warm_up_that_begins_at_zero_is_noticed_before_the_first_step():
    trainer = made(schedule=lambda optimizer: LambdaLR(optimizer, lambda step: min(step / 30, 1.0)))
    said = r'LambdaLR begins with a learning rate of 0.*first epoch changes no weight.*scheduler_every="step"'
    with pytest.raises(UserWarning, match=said):
        trainer.fit(tiny_loader(), epochs=1)
    assert trainer.clock.steps == 0
    trainer = made(
        schedule=lambda optimizer: LambdaLR(optimizer, lambda step: min(step / 30, 1.0)), scheduler_every="step"
    )
    trainer.fit(tiny_loader(), epochs=1)
    assert rate(trainer) == pytest.approx(0.1)


ZERO = "The learning rate was 0 in each of the 3 steps of epoch 1"


def test_a_rate_of_zero_during_an_epoch_is_a_warning():
    schedule = partial(LambdaLR, lr_lambda=lambda epoch: float(epoch > 1))
    trainer = made(schedule=schedule, scheduler_every="epoch")
    with pytest.warns(UserWarning, match=ZERO) as told:
        trainer.fit(tiny_loader(), epochs=3)
    assert len(told) == 1


@pytest.mark.parametrize("epochs", [1, 2])
def test_whoever_sets_the_rate_to_zero(epochs):
    model = tiny_classifier()
    options = {"callbacks": [Schedule(lambda progress: 0.0)], "device": "cpu"}
    with pytest.warns(UserWarning, match=ZERO):
        Trainer(model, sgd(model.parameters()), LOSS, **options).fit(tiny_loader(), epochs=epochs)


def test_one_of_several_optimizers_is_named():
    model = tiny_classifier()
    optimizers = [sgd(model[0].parameters()), torch.optim.Adam(model[2].parameters())]
    options = {"callbacks": [Schedule(lambda progress: 0.0, optimizer=1)], "device": "cpu"}
    with pytest.warns(UserWarning, match=r"The learning rate of optimizer 1 \(Adam\) was 0 in each"):
        Trainer(model, optimizers, LOSS, **options).fit(tiny_loader(), epochs=1)


@pytest.mark.parametrize("batches", [1, 3])
def test_a_rate_that_begins_or_ends_at_zero_is_none(batches, recwarn):
    """Up from 0 and down to 0 again within the epoch, as a warm-up with a linear decay does."""
    loader = tiny_loader(8 * batches)
    hat = [1.0, 0.0] if batches == 1 else [0.0, 1.0, 0.5, 0.0]
    made(schedule=lambda optimizer: LambdaLR(optimizer, hat.__getitem__), scheduler_every="step").fit(loader, epochs=1)
    assert not recwarn.list


def test_an_optimizer_that_was_made_with_zero_is_meant_so(recwarn):
    model = tiny_classifier()
    Trainer(model, sgd(model.parameters(), lr=0.0), LOSS, device="cpu").fit(tiny_loader(), epochs=1)
    assert not recwarn.list


def test_a_group_at_zero_among_others_is_meant(recwarn):
    model = tiny_classifier()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    Trainer(model, sgd(groups), LOSS, device="cpu").fit(tiny_loader(), epochs=1)
    assert not recwarn.list
