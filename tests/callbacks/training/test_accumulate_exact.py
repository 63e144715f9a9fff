"""Accumulate: the gradient of a window is that of one big batch, and the weights are equal step by step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cadenza import Callback, MainCallback, Trainer
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.callbacks.training.clip import GradientClip
from cadenza.testing import tiny_classifier

LOSS = nn.CrossEntropyLoss()
SIZES = (7, 3, 5, 2)
"""Windows of three: 7, 3 and 5 samples, and a last one of 2."""


def model_of(dtype=torch.float64):
    return tiny_classifier().to(dtype)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9, weight_decay=0.01)


def batches_of(sizes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(size, 4, generator=generator).to(dtype) for size in sizes]
    return [(x, torch.randint(3, (len(x),), generator=generator)) for x in inputs]


def joined(window):
    inputs, targets = zip(*window, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def by_hand(windows, dtype=torch.float64, change=lambda parameters: None):
    """Trains on one big batch for each window; the gradients and the weights of each step."""
    model = model_of(dtype)
    optimizer, gradients, weights = sgd(model.parameters()), [], []
    for window in windows:
        inputs, targets = joined(window)
        LOSS(model(inputs), targets).backward()
        change(list(model.parameters()))
        gradients.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        weights.append([p.detach().clone() for p in model.parameters()])
    return gradients, weights


class Look(Callback):
    """Copies what is stepped on, and what comes of it."""

    order = 10_000

    def __init__(self):
        self.gradients, self.weights = [], []

    def before_step(self, run):
        self.gradients.append([p.grad.clone() for p in run.module.parameters()])

    def after_step(self, run):
        self.weights.append([p.detach().clone() for p in run.module.parameters()])


def trained(batches, *callbacks, epochs=1, dtype=torch.float64, main=None):
    model, look = model_of(dtype), Look()
    mains = [] if main is None else [main]
    trainer = Trainer(model, sgd(model.parameters()), LOSS, callbacks=[*mains, *callbacks, look], device="cpu")
    trainer.fit(batches, epochs=epochs)
    assert trainer.clock.steps == len(look.weights)
    return trainer, look


def assert_equal_steps(look, expected, tolerance=1e-12):
    for mine, theirs in ((look.gradients, expected[0]), (look.weights, expected[1])):
        assert len(mine) == len(theirs)
        for one_step, other_step in zip(mine, theirs, strict=True):
            for one, other in zip(one_step, other_step, strict=True):
                torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_ragged_batches_and_a_ragged_last_window():
    batches = batches_of(SIZES)
    _, look = trained(batches, Accumulate(3))
    assert_equal_steps(look, by_hand([batches[:3], batches[3:]]))


def test_a_mean_over_batches_would_not_do():
    """The check above can fail: with equal weights for unequal batches it is off by far."""
    batches = batches_of(SIZES)
    _, look = trained(batches, Accumulate(3, weight=lambda run: 1))
    with pytest.raises(AssertionError):
        assert_equal_steps(look, by_hand([batches[:3], batches[3:]]), tolerance=1e-3)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 100])
def test_every_length_of_window_over_several_epochs(n):
    batches = batches_of((7, 3, 5, 2, 1, 6, 4))
    windows = [batches[start : start + n] for start in range(0, len(batches), n)] * 3
    _, look = trained(batches, Accumulate(n), epochs=3)
    assert_equal_steps(look, by_hand(windows))


class Skip(Callback):
    """Asks for something at one point, for the batches of these numbers."""

    def __init__(self, point, request, *numbers):
        self.point, self.request, self.numbers = point, request, numbers

    def plays(self):
        return {self.point: self._ask}

    def _ask(self, run):
        if run.batch_idx in self.numbers:
            getattr(run, self.request)()


@pytest.mark.parametrize(
    ("point", "request_"),
    [
        ("before_train_iter", "skip_batch"),
        ("before_forward", "skip_batch"),
        ("after_loss", "skip_backward"),
        ("before_backward", "skip_backward"),
    ],
)
@pytest.mark.parametrize("order", [0, 300], ids=["before", "after"])
def test_a_skipped_batch_adds_nothing_and_does_not_count(point, request_, order):
    batches = batches_of((7, 3, 5, 2, 4))
    skip = Skip(point, request_, 0, 3)
    skip.order = order
    _, look = trained(batches, Accumulate(2), skip)
    assert_equal_steps(look, by_hand([batches[1:3], batches[4:]]))


def test_a_skipped_last_batch_leaves_the_window_to_the_end_of_the_epoch():
    batches = batches_of((7, 3, 5, 2))
    _, look = trained(batches, Accumulate(4), Skip("before_train_iter", "skip_batch", 3), epochs=2)
    assert_equal_steps(look, by_hand([batches[:3]] * 2))


@pytest.mark.parametrize("point", ["before_train_iter", "after_loss", "after_backward", "before_step"])
def test_skip_step_at_the_end_of_a_window_drops_all_of_it(point):
    batches = batches_of((7, 3, 5, 2, 4))
    _, look = trained(batches, Accumulate(2), Skip(point, "skip_step", 1))
    look.gradients = look.gradients[-2:]  # who looks at before_step also sees the one that is dropped there
    assert_equal_steps(look, by_hand([batches[2:4], batches[4:]]))


@pytest.mark.parametrize("point", ["before_train_iter", "after_loss", "after_backward"])
def test_skip_step_in_the_middle_of_a_window_drops_what_it_has_so_far(point):
    batches = batches_of((7, 3, 5, 2, 4))
    _, look = trained(batches, Accumulate(3), Skip(point, "skip_step", 1))
    assert_equal_steps(look, by_hand([batches[2:]]))


def test_a_ragged_last_window_is_dropped_if_asked():
    batches = batches_of((7, 3, 5, 2, 4))
    trainer, look = trained(batches, Accumulate(3, drop_last=True), epochs=2)
    assert trainer.clock.steps == 2
    look.gradients = look.gradients[::2]
    assert_equal_steps(look, by_hand([batches[:3]] * 2))
    assert all(p.grad is None for p in trainer.model.parameters())


def test_end_epoch_steps_the_open_window():
    batches = batches_of((7, 3, 5, 2, 4))
    _, look = trained(batches, Accumulate(3), Skip("after_train_iter", "end_epoch", 1), epochs=2)
    assert_equal_steps(look, by_hand([batches[:2]] * 2))


def test_n_of_1_is_bit_equal_to_nothing_in_float32():
    batches = batches_of((7, 3, 5, 2), torch.float32)
    _, with_it = trained(batches, Accumulate(1), epochs=2, dtype=torch.float32)
    _, without = trained(batches, epochs=2, dtype=torch.float32)
    for one, other in zip(with_it.weights, without.weights, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_gradient_is_clipped_when_it_is_that_of_the_whole_window():
    batches = batches_of(SIZES)
    _, look = trained(batches, GradientClip(norm=0.1), Accumulate(3))
    clip = lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1)  # noqa: E731
    assert_equal_steps(look, by_hand([batches[:3], batches[3:]], change=clip))


class Tokens(MainCallback):
    """A loss that is the mean over tokens that are not padding (-1)."""

    def on_iter_forward(self, run):
        ids, _ = run.batch
        run.output = run.model(nn.functional.one_hot(ids, 4).to(torch.float64))

    def on_iter_loss(self, run):
        run.loss = nn.functional.cross_entropy(run.output.flatten(0, 1), run.targets.flatten(), ignore_index=-1)


def token_batches():
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, 5), (3, 2), (1, 7), (2, 2))
    return [
        (torch.randint(4, shape, generator=generator), torch.randint(3, shape, generator=generator)) for shape in shapes
    ]


def tokens_by_hand(batches, windows):
    model = model_of()
    optimizer, gradients, weights = sgd(model.parameters()), [], []
    for window in windows:
        ids, targets = (torch.cat([batches[i][part].flatten() for i in window]) for part in (0, 1))
        output = model(nn.functional.one_hot(ids, 4).to(torch.float64))
        nn.functional.cross_entropy(output, targets, ignore_index=-1).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        weights.append([p.detach().clone() for p in model.parameters()])
    return gradients, weights


def test_weighted_by_tokens():
    batches = token_batches()
    _, look = trained(batches, Accumulate(3, weight="tokens"), main=Tokens())
    assert_equal_steps(look, tokens_by_hand(batches, [(0, 1, 2), (3,)]))


def real_tokens(run):
    return int((run.targets != -1).sum())


def real_tokens_on_the_device(run):
    return (run.targets != -1).sum()


@pytest.mark.parametrize("weight", [real_tokens, real_tokens_on_the_device])
def test_weighted_by_a_function(weight):
    batches = token_batches()
    batches[0][1][0, 1:] = batches[2][1][0, :3] = -1
    _, look = trained(batches, Accumulate(3, weight=weight), main=Tokens())
    assert_equal_steps(look, tokens_by_hand(batches, [(0, 1, 2), (3,)]))


def test_a_batch_of_padding_adds_nothing_although_its_loss_is_no_number():
    batches = token_batches()
    batches[1][1].fill_(-1)
    _, look = trained(batches, Accumulate(3, weight=real_tokens), main=Tokens())
    assert_equal_steps(look, tokens_by_hand(batches, [(0, 2, 3)]))


def test_a_second_optimizer_and_parameters_that_get_no_gradient():
    batches, look = batches_of(SIZES), Look()
    model = model_of()
    model.unused = nn.Linear(2, 2)  # the sequence calls only what is inside
    parts = [sgd(model[0].parameters()), sgd([*model[2].parameters(), *model.unused.parameters()])]
    model.forward = lambda x: model[2](model[1](model[0](x)))
    look.before_step = lambda run: look.gradients.append(
        [p.grad.clone() for p in run.module.parameters() if p.grad is not None]
    )
    look.after_step = lambda run: look.weights.append([p.detach().clone() for p in list(model.parameters())[:4]])
    Trainer(model, parts, LOSS, callbacks=[Accumulate(3), look], device="cpu").fit(batches, epochs=1)
    assert_equal_steps(look, by_hand([batches[:3], batches[3:]]))
