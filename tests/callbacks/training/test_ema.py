"""EMA: the average against values by hand, when it moves, its state and what is refused."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from cadenza import Callback, CallbackError, MainCallback, Trainer, When
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.callbacks.training.averaging import update_average, weights_of
from cadenza.callbacks.training.ema import EMA, decay_at
from cadenza.callbacks.training.weight_average import WeightAverage
from cadenza.testing import tiny_classifier, tiny_loader

LOSS = nn.CrossEntropyLoss()


def with_norm():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def made(*callbacks, model=None):
    model = tiny_classifier() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return Trainer(model, optimizer, LOSS, callbacks=callbacks, device="cpu")


class Weights(Callback):
    """Copies all that the model saves, after every step; the first is the start."""

    def __init__(self):
        self.seen = []

    def before_run(self, run):
        self.seen.append(copy.deepcopy(run.module.state_dict()))

    def after_step(self, run):
        self.seen.append(copy.deepcopy(run.module.state_dict()))


def averaged_by_hand(seen, decays, names=None):
    """In float64, by the formula of the docstring."""
    average = {name: tensor.double() for name, tensor in seen[0].items()}
    for weights, decay in zip(seen[1:], decays, strict=True):
        for name, old in average.items():
            new = weights[name].double()
            average[name] = decay * old + (1 - decay) * new if names is None or name in names else new
    return average


def assert_close(average, expected):
    assert average.keys() == expected.keys()
    for name, tensor in average.items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-6)


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("arguments", "decay"),
    [
        ({}, lambda s: 0.9),
        ({"warmup": "threshold"}, lambda s: min(0.9, (1 + s) / (10 + s))),
        ({"warmup": "exponential", "steps": 20}, lambda s: 0.9 * (1 - math.exp(-15 * s / 20))),
        ({"warmup": "exponential", "steps": 6, "beta": 2.0}, lambda s: 0.9 * (1 - math.exp(-2 * s / 6))),
    ],
)
def test_the_average_is_that_of_the_formula(arguments, decay):
    ema, weights = EMA(0.9, **arguments), Weights()
    made(ema, weights).fit(tiny_loader(), epochs=2)
    assert_close(ema.average, averaged_by_hand(weights.seen, [decay(s) for s in range(1, 7)]))
    assert [decay_at(s, 0.9, **{"warmup": "constant", **arguments}) for s in (1, 7)] == [decay(1), decay(7)]


STATISTICS = {"1.running_mean", "1.running_var"}


@pytest.mark.parametrize("buffers", ["copy", "average"])
def test_statistics_are_copied_or_averaged_and_counters_copied(buffers):
    ema, weights, model = EMA(0.5, buffers=buffers), Weights(), with_norm()
    made(ema, weights, model=model).fit(tiny_loader(), epochs=2)
    moving = {name for name, _ in model.named_parameters()} | (STATISTICS if buffers == "average" else set())
    assert_close(ema.average, averaged_by_hand(weights.seen, [0.5] * 6, moving))
    assert ema.average["1.num_batches_tracked"].item() == 6
    assert ema.average["1.num_batches_tracked"].dtype is torch.int64


def test_buffers_that_are_no_statistics_are_copied_and_unsaved_ones_left_alone():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny_classifier()
            self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
            self.register_buffer("scratch", torch.zeros(1), persistent=False)

        def forward(self, x):
            self.scratch += 1
            return self.inner(x)

    model, ema = Masked(), EMA(0.5, buffers="average", keep=True)
    made(ema, model=model).fit(tiny_loader(), tiny_loader(), epochs=1)
    assert model.mask.tolist() == [0.0, -math.inf]
    assert model.scratch.item() == 6
    assert "scratch" not in ema.average


def test_weights_in_half_precision_are_averaged_in_float32_and_come_back_bit_equal():
    model = tiny_classifier().to(torch.bfloat16)
    ema, weights = EMA(0.999), Weights()

    class Casting(MainCallback):
        def on_iter_forward(self, run):
            run.output = run.model(run.inputs.to(torch.bfloat16))

    made(ema, weights, Casting(), model=model).fit(tiny_loader(), tiny_loader(), epochs=2)
    assert {tensor.dtype for tensor in ema.average.values()} == {torch.float32}
    assert_close(ema.average, averaged_by_hand(weights.seen, [0.999] * 6))
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), weights.seen[-1].values(), strict=True))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


# When it moves ------------------------------------------------------------------------------------------------------


def test_it_moves_with_real_steps_only():
    class Skip(Callback):
        def before_step(self, run):
            if run.clock.steps == 1 and not self.done:
                self.done = True
                run.skip_step()

        done = False

    ema, weights = EMA(0.9), Weights()
    trainer = made(Accumulate(2), ema, weights, Skip())
    trainer.fit(tiny_loader(40, 8), epochs=2)
    assert trainer.clock.steps == 5
    assert_close(ema.average, averaged_by_hand(weights.seen, [0.9] * 5))


def test_it_can_begin_in_the_middle_of_a_training():
    ema, weights = EMA(0.9), Weights()
    made(When(ema, start="1 epoch"), weights).fit(tiny_loader(), epochs=2)
    assert_close(ema.average, averaged_by_hand(weights.seen[3:], [0.9] * 3))
    late = EMA(0.9)
    made(When(late, start="4 steps"), weights := Weights()).fit(tiny_loader(), epochs=2)
    assert_close(late.average, averaged_by_hand([weights.seen[5], *weights.seen[5:]], [0.9] * 2))


def test_a_second_fit_goes_on():
    once, twice = EMA(0.9, warmup="threshold"), EMA(0.9, warmup="threshold")
    made(once).fit(tiny_loader(), epochs=4)
    trainer = made(twice)
    trainer.fit(tiny_loader(), epochs=2)
    trainer.fit(tiny_loader(), epochs=2)
    assert equal(once.average, twice.average)


def test_continuing_in_fresh_objects_is_bit_equal():
    def fresh():
        ema = EMA(0.99, warmup="exponential", steps=12, buffers="average")
        return ema, made(ema, model=with_norm())

    whole, trainer = fresh()
    trainer.fit(tiny_loader(), epochs=4)
    first, half = fresh()
    half.fit(tiny_loader(), epochs=2)
    states = copy.deepcopy([first.state_dict(), half.model.state_dict(), half._training.optimizers[0].state_dict()])
    second, rest = fresh()
    second.load_state_dict(states[0])
    rest.model.load_state_dict(states[1])
    rest._training.optimizers[0].load_state_dict(states[2])
    rest.fit(tiny_loader(), epochs=2)
    assert equal(second.average, whole.average)
    assert second.updates == whole.updates == 12
    states[0]["average"]["0.weight"].zero_()
    assert equal(second.average, whole.average)  # what was loaded is its own copy


def test_parameters_that_are_set_anew_in_a_step_are_followed():
    class Replace(Callback):
        order = 0

        def after_step(self, run):
            for parameter in run.module.parameters():
                parameter.data = parameter.data.clamp(-0.1, 0.1)

    ema, weights = EMA(0.9), Weights()
    made(ema, Replace(), weights).fit(tiny_loader(), epochs=1)
    assert_close(ema.average, averaged_by_hand(weights.seen, [0.9] * 3))


def test_tied_weights_are_averaged_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    ema = EMA(0.9, keep=True)
    made(ema, model=model).fit(tiny_loader(), tiny_loader(), epochs=1)
    assert "1.weight" not in ema.average
    assert torch.equal(model[1].weight, ema.average["0.weight"])
    assert set(weights_of(model)) == set(ema.average)


def test_nothing_is_read_from_the_device(monkeypatch):
    def read(*args):
        raise AssertionError("a tensor was read on the host")

    batches, trainer = list(tiny_loader()), made(EMA(0.9, warmup="threshold"), model=with_norm())
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "cpu", "__bool__", "__float__"):
            patch.setattr(torch.Tensor, name, read)
        trainer.fit(batches, batches, epochs=1)
    assert trainer.clock.steps == 3


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"decay": 1.0}, "decay must be at least 0 and below 1"),
        ({"decay": -0.1}, "decay must be"),
        ({"decay": math.nan}, "decay must be"),
        ({"warmup": "linear"}, "constant, threshold, exponential"),
        ({"warmup": "exponential"}, "needs it"),
        ({"steps": 10}, "belongs to"),
        ({"warmup": "exponential", "steps": 0}, "steps must be a whole number of at least 1"),
        ({"warmup": "exponential", "steps": 9, "beta": 0}, "beta must be above 0"),
        ({"buffers": "both"}, '"copy" or "average"'),
    ],
)
def test_bad_arguments_are_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        EMA(**arguments)


def test_the_average_of_another_model_is_refused():
    ema = EMA(0.9)
    made(ema).fit(tiny_loader(), epochs=1)
    with pytest.raises(ValueError, match=r"its '0.weight' has the shape \[8, 4\], in the model \[5, 4\]"):
        ema.copy_to(tiny_classifier(hidden=5))
    with pytest.raises(ValueError, match=r"only the model has '1.bias'"):
        ema.copy_to(with_norm())
    with pytest.raises(ValueError, match=r"only its state has '0.bias'"):
        ema.copy_to(nn.Sequential())


def test_two_who_decide_on_the_final_weights_are_refused():
    with pytest.raises(CallbackError, match="both own 'final weights'"):
        made(EMA(keep=True), WeightAverage())


def test_the_plain_function():
    average, current = [torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 2.0], requires_grad=True)]
    update_average(average, current, 0.5)
    assert average[0].tolist() == [2.0, 2.0]
    assert not average[0].requires_grad
    update_average([], [], 0.5)


def test_it_says_what_it_does():
    assert EMA(0.9).explain() == "decay 0.9, evaluated"
    assert EMA(0.9, warmup="threshold", evaluate=False, keep=True).explain() == (
        "decay 0.9, threshold warm-up, not evaluated, kept at the end"
    )
    assert EMA().capturable
    assert not EMA(warmup="threshold").capturable
