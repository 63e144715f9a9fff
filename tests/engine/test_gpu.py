"""On a CUDA device: nothing waits for it, results are bit-equal to a loop by hand, batches and outputs move."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import StepLR

from cadenza import Callback, Run, Trainer
from cadenza.data import to_device
from cadenza.testing import Recorder, tiny_classifier, tiny_loader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)
WATCHED = pytest.mark.parametrize("callbacks", [(), (Recorder,)], ids=["bare", "opened"])
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: AdamW(parameters, lr=0.01),
    "fused adamw": lambda parameters: AdamW(parameters, lr=0.01, fused=True),
}


@pytest.fixture
def waiting_is_an_error() -> Iterator[Callable[[], None]]:
    """Called, it makes every wait for the device an error, until the test ends."""
    yield lambda: set_mode("error")
    set_mode("default")


def set_mode(mode: str) -> None:
    with warnings.catch_warnings():  # the mode says of itself that it is a prototype
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)


def model_on_gpu() -> nn.Module:
    plain = tiny_classifier()
    return nn.Sequential(plain[0], nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), plain[2]).to(CUDA)


def made(*callbacks: Callback, optimizer: str = "sgd") -> Trainer:
    model = model_on_gpu()
    stepper = OPTIMIZERS[optimizer](model.parameters())
    schedule = StepLR(stepper, 1, 0.5)
    return Trainer(model, stepper, nn.CrossEntropyLoss(), scheduler=schedule, callbacks=callbacks, device=CUDA)


def ready(samples: int = 20) -> list[tuple[Tensor, Tensor]]:
    return [(x.to(CUDA), y.to(CUDA)) for x, y in tiny_loader(samples)]


def test_the_debug_mode_does_raise(waiting_is_an_error: Callable[[], None]) -> None:
    value = torch.ones((), device=CUDA)
    waiting_is_an_error()
    with pytest.raises(RuntimeError, match="synchronizing"):
        value.item()


@WATCHED
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("every", ["1 epoch", "2 steps"])
def test_fit_with_validation_does_not_wait(
    optimizer: str, every: str, callbacks: Any, waiting_is_an_error: Callable[[], None]
) -> None:
    trainer = made(*(make() for make in callbacks), optimizer=optimizer)
    trainer.on("after_loss")(lambda run: run.log(f"{run.stage}/mine", run.loss))
    train, val = ready(), ready(10)
    waiting_is_an_error()
    trainer.fit(train, val, epochs=3, test_loaders=val, validate_every=every)
    set_mode("default")
    assert trainer.clock.steps == 9
    assert len(trainer.history["train/loss"]) == 3


def test_pinned_batches_travel_without_waiting(waiting_is_an_error: Callable[[], None]) -> None:
    trainer = made()
    batches = [(x.pin_memory(), y.pin_memory()) for x, y in tiny_loader(20)]
    waiting_is_an_error()
    trainer.fit(batches, epochs=2)
    set_mode("default")
    assert trainer.clock.steps == 6


def test_many_batches_are_summed_without_waiting(waiting_is_an_error: Callable[[], None]) -> None:
    trainer = made()
    batches = ready(8) * 600
    waiting_is_an_error()
    trainer.fit(batches, epochs=1)
    set_mode("default")
    assert trainer.clock.steps == 600


@WATCHED
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equal_to_the_loop_by_hand(optimizer: str, callbacks: Any) -> None:
    train, val = ready(), ready(10)
    hand = made(optimizer=optimizer)
    model, stepper = hand.model, hand._training.optimizers[0]
    schedule = StepLR(stepper, 1, 0.5)
    torch.manual_seed(5)
    losses = []
    for _ in range(3):
        model.train()
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            stepper.step()
            stepper.zero_grad()
            losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            for x, _ in val:
                model(x)
        model.train()
        schedule.step()
    random_after = torch.cuda.get_rng_state(CUDA)

    seen: list[Tensor] = []
    trainer = made(*(make() for make in callbacks), optimizer=optimizer)
    trainer.on("after_train_iter")(lambda run: seen.append(run.loss.detach()))
    torch.manual_seed(5)
    trainer.fit(train, val, epochs=3)
    assert torch.equal(torch.stack(seen), torch.stack(losses))
    assert all(map(torch.equal, trainer.model.state_dict().values(), model.state_dict().values()))
    assert torch.equal(torch.cuda.get_rng_state(CUDA), random_after)


def test_auto_takes_the_device_and_moves_model_and_batches() -> None:
    model = tiny_classifier()
    trainer = Trainer(model, SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    seen = set()
    trainer.on("before_iter")(lambda run: seen.update(part.device.type for part in run.batch))
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    assert seen == {"cuda"}
    assert {weight.device.type for weight in model.parameters()} == {"cuda"}


def test_predictions_come_back_to_the_cpu_or_stay() -> None:
    trainer = made()
    home, there = trainer.predict(tiny_loader(20)), trainer.predict(tiny_loader(20), device=None)
    assert home.device.type == "cpu"
    assert there.device == CUDA
    assert torch.equal(home, there.cpu())


def test_nested_passes_keep_the_generator_of_the_device() -> None:
    trainer, seen = made(), []

    @trainer.on("after_train_iter")
    def nested(run: Run) -> None:
        before = torch.cuda.get_rng_state(CUDA)
        run.module.train()
        outputs = run.predict(tiny_loader(8))
        run.evaluate(tiny_loader(8))
        torch.rand(1)
        seen.append(torch.equal(before, torch.cuda.get_rng_state(CUDA)) and outputs.device.type == "cpu")

    trainer.fit(tiny_loader(), epochs=1)
    assert seen == [True] * 3


def test_a_packed_sequence_moves_and_keeps_its_lengths() -> None:
    packed = pack_sequence([torch.ones(3, 1), torch.ones(2, 1)])
    moved = to_device((packed, torch.zeros(2)), CUDA)[0]
    assert isinstance(moved, PackedSequence)
    assert moved.data.device == CUDA
    assert moved.batch_sizes.device.type == "cpu"


def test_metrics_of_both_sides_are_read_together() -> None:
    trainer = made()

    @trainer.on("after_train_iter")
    def log(run: Run) -> None:
        run.log("there", torch.full((), 1.5, device=CUDA))
        run.log("here", 2)
        run.log("count", torch.tensor(3, device=CUDA))

    history = trainer.fit(ready(), epochs=1)
    inside = [(row["there"], row["here"], row["count"]) for row in history.iters]
    assert inside == [(1.5, 2.0, 3.0)] * 3
    assert (history["there"], history["here"], history["count"]) == ([1.5], [2.0], [3.0])


def test_a_logged_value_is_the_one_at_the_time_of_logging() -> None:
    trainer, total = made(), torch.zeros((), device=CUDA)

    @trainer.on("after_train_iter")
    def log(run: Run) -> None:
        total.add_(1)
        run.log("total", total)

    assert [row["total"] for row in trainer.fit(ready(), epochs=1).iters] == [1.0, 2.0, 3.0]
