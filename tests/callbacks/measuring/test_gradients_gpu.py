"""On a CUDA device: what changes gradients, formats and averages is exact there, and nothing waits for the device."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks.training.accumulate import Accumulate
from cadenza.callbacks.training.clip import GradientClip
from cadenza.callbacks.training.ema import EMA
from cadenza.callbacks.training.freeze import Freeze
from cadenza.callbacks.training.freeze_batchnorm import FreezeBatchNorm
from cadenza.callbacks.training.precise_batchnorm import PreciseBatchNorm
from cadenza.callbacks.training.precision import Precision
from cadenza.callbacks.training.weight_average import WeightAverage
from cadenza.testing import check_callback, tiny_loader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LOSS = nn.CrossEntropyLoss()


def model_of():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)).cuda()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def made(*callbacks, optimizer=sgd, model=None):
    model = model_of() if model is None else model
    return Trainer(model, optimizer(model.parameters()), LOSS, callbacks=callbacks, device="cuda")


def ready(samples=40, size=8):
    return [(inputs.cuda(), targets.cuda()) for inputs, targets in tiny_loader(samples, size)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def set_mode(mode):
    with warnings.catch_warnings():  # the mode says of itself that it is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


class Spoil(Callback):
    def after_backward(self, run):
        if run.clock.batches in (1, 4):
            run.module[0].weight.grad[0, 0].fill_(math.inf)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_scaler_and_clip_are_bit_equal_to_a_loop_of_ones_own(precision):
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    model, batches = model_of(), ready()
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    torch.manual_seed(5)
    for index, (inputs, targets) in enumerate(batches):
        with torch.autocast("cuda", dtype=dtype):
            loss = LOSS(model(inputs), targets)
        scaler.scale(loss).backward()
        if precision == "fp16" and index in (1, 4):
            model[0].weight.grad[0, 0].fill_(math.inf)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    spoil = [Spoil()] if precision == "fp16" else []
    trainer = made(Precision(precision), GradientClip(0.5), *spoil)
    torch.manual_seed(5)
    trainer.fit(batches, epochs=1)
    assert trainer.clock.steps == (3 if spoil else 5)
    assert same(trainer.model, model)


@pytest.mark.parametrize("fused", [False, True])
def test_a_withheld_step_counts_as_skipped(fused):
    trainer = made(Precision("fp16"), Spoil(), optimizer=lambda p: torch.optim.AdamW(p, 0.01, fused=fused))
    trainer.fit(ready(), epochs=1)
    assert trainer.clock.steps == 3
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


def test_nothing_waits_for_the_device():
    callbacks = [
        Precision("bf16"),
        Accumulate(2),
        GradientClip(1.0, log=True),
        EMA(0.9, warmup="threshold", buffers="average"),
        WeightAverage(every="1 step", apply=False),
        Freeze("4", until="1 epoch"),
        FreezeBatchNorm("1 epoch", affine=True),
    ]
    trainer, batches = made(*callbacks), ready()
    trainer.fit(batches, batches, epochs=1)
    set_mode("error")
    try:
        trainer.fit(batches, batches, epochs=1)
    finally:
        set_mode("default")
    assert trainer.clock.steps == 6


def on_the_device(run):
    return (run.targets >= 0).sum()


@pytest.mark.parametrize("weight", ["samples", on_the_device])
def test_a_window_is_the_gradient_of_one_big_batch(weight):
    model = nn.Linear(4, 3).double().cuda()
    batches = [(x.double(), y) for size in (7, 3, 5, 2) for x, y in ready(size, size)]
    gradients = []

    class Look(Callback):
        order = 10_000

        def before_step(self, run):
            gradients.append([p.grad.clone() for p in run.module.parameters()])

    fixed = made(Accumulate(3, weight), Look(), model=model, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    fixed.fit(batches, epochs=1)
    for window, mine in zip((batches[:3], batches[3:]), gradients, strict=True):
        inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
        theirs = torch.autograd.grad(LOSS(model(inputs), targets), list(model.parameters()))
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_an_average_that_was_saved_on_the_host_goes_on_and_evaluates_on_the_device():
    ema, again = EMA(0.9), EMA(0.9)
    trainer = made(ema)
    trainer.fit(ready(), ready(), epochs=1)
    own = copy.deepcopy(trainer.model)
    again.load_state_dict(torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, ema.state_dict()))
    with again.swap(trainer.model):
        assert torch.equal(trainer.model[0].weight, ema.average["0.weight"])
    assert same(trainer.model, own)
    made(again, model=trainer.model).fit(ready(), ready(), epochs=1)
    assert all(tensor.is_cuda for tensor in again.average.values())


def test_precise_statistics_leave_weights_and_random_numbers_alone():
    drawn, models = [], []
    for callbacks in ([PreciseBatchNorm(3)], []):
        trainer = made(*callbacks)
        torch.manual_seed(3)
        trainer.fit(ready(), ready(), epochs=2)
        drawn.append(torch.rand(4, device="cuda"))
        models.append(trainer.model)
    assert torch.equal(*drawn)
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))
    assert not torch.equal(models[0][1].running_mean, models[1][1].running_mean)


def test_the_best_epochs_are_kept_on_the_host_and_come_back():
    average, weights = WeightAverage(best=2, monitor="val/loss", batchnorm="average"), []
    trainer = made(average)
    trainer.on("after_epoch")(lambda run: weights.append(run.module[0].weight.detach().clone()))
    trainer.fit(ready(), ready(), epochs=2)
    torch.testing.assert_close(trainer.model[0].weight.detach(), (weights[0] + weights[1]) / 2)
    assert all(not t.is_cuda for member in average.state_dict()["members"] for t in member["weights"].values())


@pytest.mark.parametrize(
    "callback",
    [GradientClip.example(), Accumulate.example(), Precision("fp16"), EMA(), PreciseBatchNorm(), Freeze.example()],
    ids=lambda callback: callback.name,
)
def test_good_callbacks_on_the_device(callback):
    def trainer_of(callbacks):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.1), nn.Linear(6, 2))
        return Trainer(model, sgd(model.parameters()), LOSS, callbacks=callbacks, device="cuda")

    check_callback(callback, trainer_of)
