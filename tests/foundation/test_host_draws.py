"""Random numbers of a callback's own: what seeds them, what keeps them, and that nothing waits for them."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cadenza
from cadenza.callbacks.training.cutmix import CutMix
from cadenza.callbacks.training.mixup import MixUp
from cadenza.foundation.host_draws import Draws
from cadenza.testing import tiny_classifier, tiny_loader

SEED = 5


def made(*callbacks: cadenza.Callback) -> cadenza.Trainer:
    model = tiny_classifier()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_the_draws_are_what_they_say() -> None:
    draws, cpu = Draws(seed=0), torch.device("cpu")
    assert draws.permutation(50, cpu).sort().values.tolist() == list(range(50))
    assert not torch.equal(draws.permutation(50, cpu), draws.permutation(50, cpu))
    assert {draws.below(3) for _ in range(50)} == {0, 1, 2}
    assert all(0 <= draws.uniform() < 1 for _ in range(50))
    for alpha in (0.2, 1.0, 4.0):
        drawn = torch.tensor([draws.beta(alpha) for _ in range(4000)])
        assert float(drawn.mean()) == pytest.approx(0.5, abs=0.03)
        assert float(drawn.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


def test_a_state_without_a_generator_is_one_that_is_not_seeded_yet() -> None:
    fresh, used = Draws(), Draws(seed=1)
    used.load_state_dict(fresh.state_dict())
    torch.manual_seed(0)
    first = fresh.uniform()
    torch.manual_seed(0)
    assert used.uniform() == first


def test_with_a_seed_nothing_is_drawn_from_the_global_generator_and_without_one_number() -> None:
    batches = list(tiny_loader(20))
    for callback, drawn in ((MixUp(seed=1), False), (MixUp(), True)):
        torch.manual_seed(3)
        made(callback).fit(batches, epochs=2)
        after = torch.get_rng_state()
        torch.manual_seed(3)
        if drawn:
            torch.randint(2**62, ())
        assert torch.equal(after, torch.get_rng_state())


def test_the_global_seed_decides_when_none_is_given() -> None:
    models = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        trainer = made(MixUp())
        trainer.fit(tiny_loader(20), epochs=1)
        models.append(trainer.model)
    assert_equal(models[0], models[1])
    assert not torch.equal(models[0][0].weight, models[2][0].weight)


@pytest.mark.parametrize("make", [lambda: MixUp(probability=0.7), lambda: CutMix(soft=3)], ids=["mixup", "cutmix"])
def test_a_restored_training_goes_on_bit_equal(make: Any) -> None:
    torch.manual_seed(0)
    first = made(make())
    first.fit(tiny_loader(20), epochs=1)
    second = made(make())
    second.model.load_state_dict(first.model.state_dict())
    optimizers = [trainer._training.optimizers[0] for trainer in (first, second)]
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    second.callbacks[0].load_state_dict(first.callbacks[0].state_dict())
    for trainer in (first, second):
        trainer.fit(tiny_loader(20), epochs=2)
    assert_equal(first.model, second.model)


def test_a_second_fit_goes_on() -> None:
    once, twice = made(MixUp(seed=SEED)), made(MixUp(seed=SEED))
    once.fit(tiny_loader(20), epochs=3)
    for epochs in (1, 2):
        twice.fit(tiny_loader(20), epochs=epochs)
    assert_equal(once.model, twice.model)


def test_the_batch_path_reads_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a tensor was read on the host")

    batches, trainer = list(tiny_loader(20)), made(MixUp(seed=1))
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__"):
            patch.setattr(Tensor, name, refuse)
        trainer.fit(batches, epochs=2)
    assert trainer.clock.steps == 6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [MixUp, CutMix])
@pytest.mark.parametrize("soft", [None, 3])
def test_nothing_waits_for_the_gpu_and_the_draws_are_the_same_there(kind: Any, soft: int | None) -> None:
    batches = [(inputs.cuda(), targets.cuda()) for inputs, targets in tiny_loader(20)]
    model = tiny_classifier().cuda()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = cadenza.Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=[kind(seed=SEED, soft=soft)], device="cuda")
    trainer.fit(batches, epochs=1)
    with warnings.catch_warnings():  # the mode says of itself that it is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            with trainer.run(epochs=1) as run:
                for _ in run.epochs():
                    for _ in run.train(batches):
                        run.train_step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    on_cpu = made(kind(seed=SEED, soft=soft))
    on_cpu.fit(tiny_loader(20), epochs=2)
    for one, other in zip(model.parameters(), on_cpu.model.parameters(), strict=True):
        assert torch.allclose(one.cpu(), other, atol=1e-5)  # other kernels round in other ways
