"""PreciseBatchNorm: statistics by hand, and everything else as before."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from cadenza import Callback, MainCallback, Trainer
from cadenza.callbacks.training.ema import EMA
from cadenza.callbacks.training.freeze_batchnorm import FreezeBatchNorm
from cadenza.callbacks.training.precise_batchnorm import PreciseBatchNorm, recompute_batchnorm
from cadenza.testing import tiny_data, tiny_loader

LOSS = nn.CrossEntropyLoss()


def model_of(dropout=0.0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.BatchNorm1d(4), nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=0.3), nn.Dropout(dropout), nn.Linear(6, 3)
        )


def made(*callbacks, model=None):
    model = model_of() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return Trainer(model, optimizer, LOSS, callbacks=callbacks, device="cpu")


def parameters_equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def by_hand(model, batches):
    """Mean and unbiased variance of what enters each of the two norms, over all batches together."""
    model = copy.deepcopy(model).train()
    seen = {0: [], 2: []}
    for index in seen:
        model[index].register_forward_pre_hook(lambda _, inputs, index=index: seen[index].append(inputs[0]))
    with torch.no_grad():
        for inputs, _ in batches:
            model(inputs)
    return {index: (torch.cat(parts).mean(0), torch.cat(parts).var(0)) for index, parts in seen.items()}


def assert_statistics(model, expected):
    for index, (mean, variance) in expected.items():
        torch.testing.assert_close(model[index].running_mean, mean)
        torch.testing.assert_close(model[index].running_var, variance)


@pytest.mark.parametrize(("batches", "used"), [(2, 2), (100, 4)])
def test_the_statistics_are_those_of_the_first_batches_ragged_or_not(batches, used):
    data = list(tiny_loader(20, 6))
    trainer = made(PreciseBatchNorm(batches))
    trainer.fit(data, tiny_loader(8), epochs=2)
    assert_statistics(trainer.model, by_hand(trainer.model, data[:used]))


def test_nothing_but_the_statistics_changes():
    seen = {}
    for name, callbacks in (("with", [PreciseBatchNorm(3)]), ("without", [])):
        torch.manual_seed(0)
        random.seed(0)
        generator = torch.Generator().manual_seed(7)
        loader = DataLoader(tiny_data(), batch_size=8, shuffle=True, generator=generator)
        trainer = made(*callbacks, model=model_of(dropout=0.3))
        history = trainer.fit(loader, tiny_loader(8), epochs=3)
        model = trainer.model
        seen[name] = model, history["train/loss"], torch.rand(3), random.random(), generator.get_state()
        assert [model[0].momentum, model[2].momentum] == [0.1, 0.3]
        assert model[2].num_batches_tracked.item() == 9
        assert all(not part._forward_hooks for part in model.modules())
        assert all(part.training for part in model.modules())
        assert all(parameter.grad is None for parameter in model.parameters())
    assert parameters_equal(seen["with"][0], seen["without"][0])
    assert seen["with"][1] == seen["without"][1]
    assert torch.equal(seen["with"][2], seen["without"][2])
    assert seen["with"][3] == seen["without"][3]
    assert torch.equal(seen["with"][4], seen["without"][4])
    assert not torch.equal(seen["with"][0][2].running_mean, seen["without"][0][2].running_mean)


def test_shuffling_by_the_global_generator_stays_as_it_was():
    models = []
    for callbacks in ([PreciseBatchNorm(2)], []):
        torch.manual_seed(0)
        trainer = made(*callbacks)
        trainer.fit(tiny_loader(shuffle=True), tiny_loader(8), epochs=2, validate_every="2 steps")
        models.append(trainer.model)
    assert parameters_equal(*models)


def test_it_plays_before_the_first_batch_of_validation_sees_them():
    at_validation = []

    class Look(Callback):
        stages = {"val"}

        def before_forward(self, run):
            at_validation.append(copy.deepcopy(run.module))
            assert not any(part.training for part in run.module.modules())

    data = list(tiny_loader())
    made(PreciseBatchNorm(3), Look()).fit(data, tiny_loader(8), epochs=1, validate_every="1 step")
    assert len(at_validation) == 3
    for model in at_validation:
        assert_statistics(model, by_hand(model, data))


def test_with_an_average_the_statistics_are_those_of_the_averaged_weights():
    inside, data = [], list(tiny_loader())
    ema = EMA(0.5)
    trainer = made(PreciseBatchNorm(3), ema)
    trainer.on("before_val_iter")(lambda run: inside.append(copy.deepcopy(run.module)))
    trainer.fit(data, tiny_loader(8), epochs=1)
    assert torch.equal(inside[0][1].weight, ema.average["1.weight"])
    assert_statistics(inside[0], by_hand(inside[0], data))


def test_frozen_layers_and_instances_without_statistics_are_left_alone():
    model = model_of()
    model[2].eval()
    model[0] = nn.BatchNorm1d(4, track_running_stats=False)
    trainer = made(PreciseBatchNorm(3), model=model)
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert model[2].running_mean.eq(0).all()
    assert not model[2].training
    trainer = made(PreciseBatchNorm(3), FreezeBatchNorm())
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1, validate_every="1 step")
    assert trainer.model[2].running_mean.eq(0).all()


def test_the_training_forward_of_the_main_callback_is_used():
    class Own(MainCallback):
        def on_train_forward(self, run):
            assert run.training
            run.output = run.model(run.batch["image"] * 2)

        def on_val_forward(self, run):
            run.output = run.model(run.batch["image"] * 2)

    data = [{"image": inputs, "label": targets} for inputs, targets in tiny_loader()]
    trainer = made(PreciseBatchNorm(3), Own())
    trainer.fit(data, data, epochs=1)
    expected = torch.cat([batch["image"] * 2 for batch in data]).mean(0)
    torch.testing.assert_close(trainer.model[0].running_mean, expected)


def test_another_loader_and_what_cannot_be_read_twice():
    other = list(tiny_loader(seed=9))
    trainer = made(PreciseBatchNorm(3, loader=other))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert_statistics(trainer.model, by_hand(trainer.model, other))
    with pytest.raises(ValueError, match="can be read only once"):
        made(PreciseBatchNorm(3)).fit(iter(list(tiny_loader())), tiny_loader(8), epochs=1)

    def validate_only():
        with made(PreciseBatchNorm(3)).run(epochs=1) as run:
            for _ in run.epochs():
                next(run.validate(tiny_loader()))

    with pytest.raises(ValueError, match="no train_loader"):
        validate_only()


def test_persistent_workers_are_refused_in_the_middle_of_their_pass():
    class Persistent(list):
        persistent_workers = True

    data = Persistent(tiny_loader())
    made(PreciseBatchNorm(3)).fit(data, tiny_loader(8), epochs=1)
    with pytest.raises(ValueError, match="persistent workers"):
        made(PreciseBatchNorm(3)).fit(data, tiny_loader(8), epochs=1, validate_every="1 step")


def test_a_failing_forward_leaves_everything_as_it_was():
    model = model_of()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="shapes"):
        recompute_batchnorm(model, [torch.ones(2, 4), torch.ones(2, 7)], lambda x: model[2](model[1](x)))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert model[2].momentum == 0.3
    assert not model[2]._forward_hooks


def test_the_plain_function_counts_layers_and_leaves_what_it_does_not_reach():
    model = model_of()
    assert recompute_batchnorm(model, [inputs for inputs, _ in tiny_loader()], model) == 2
    assert recompute_batchnorm(model.eval(), [], model) == 0
    assert recompute_batchnorm(nn.Linear(2, 2), [], model) == 0
    norm, before = nn.BatchNorm2d(3), torch.ones(3)
    assert recompute_batchnorm(norm, [], norm) == 1
    assert torch.equal(norm.running_var, before)
    images = [torch.randn(size, 3, 5, 4) for size in (4, 2)]
    assert recompute_batchnorm(norm, images, norm) == 1
    pixels = torch.cat(images).permute(1, 0, 2, 3).flatten(1)
    torch.testing.assert_close(norm.running_mean, pixels.mean(1))
    torch.testing.assert_close(norm.running_var, pixels.var(1))


def test_validation_alone_changes_nothing():
    trainer = made(PreciseBatchNorm(3))
    trainer.validate(tiny_loader())
    assert trainer.model[0].running_mean.eq(0).all()


@pytest.mark.parametrize("batches", [0, -1, 1.5, True, None])
def test_bad_arguments_are_refused(batches):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        PreciseBatchNorm(batches)


def test_it_is_a_good_callback():
    assert PreciseBatchNorm(7).explain() == "over 7 batches"
