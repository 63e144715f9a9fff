"""Nothing on the batch path reads a tensor back: with host reads made to raise, ``fit`` still runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Callback, Trainer
from cadenza.execution.recorded.host_sync import noting_synchronize
from cadenza.testing import Recorder, tiny_classifier, tiny_loader

READS = ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__array__", "__complex__")


class Waited(Exception):
    """A tensor was read on the host."""


@pytest.fixture
def no_host_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(name: str) -> Callable[..., Any]:
        def read(*args: Any, **kwargs: Any) -> Any:
            raise Waited(f"Tensor.{name}")

        return read

    with monkeypatch.context() as patch:
        for name in READS:
            patch.setattr(torch.Tensor, name, refuse(name))
        yield


def made(*callbacks: Callback, **more: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", **more)


def ready(samples: int = 24) -> list[Any]:
    return list(tiny_loader(samples))


@pytest.fixture
def batches() -> tuple[list[Any], list[Any]]:
    return ready(20), ready(10)


def test_the_reads_do_raise(no_host_reads: None) -> None:
    value = torch.ones(())
    for read in (value.item, value.cpu, value.tolist, value.numpy, lambda: bool(value), lambda: float(value)):
        with pytest.raises(Waited):
            read()


@pytest.mark.parametrize("more", [{}, {"validate_every": "2 steps"}], ids=["per epoch", "in between"])
@pytest.mark.parametrize("callbacks", [(), (Recorder,)], ids=["bare", "opened"])
def test_fit_with_validation(batches: Any, more: Any, callbacks: Any, request: pytest.FixtureRequest) -> None:
    train, val = batches
    trainer = made(*(make() for make in callbacks))
    request.getfixturevalue("no_host_reads")
    trainer.fit(train, val, epochs=2, test_loaders={"held": val}, **more)
    assert trainer.clock.steps == 6


def test_many_batches_are_summed_without_a_read(request: pytest.FixtureRequest) -> None:
    batch = ready()[0]
    trainer = made()
    request.getfixturevalue("no_host_reads")
    trainer.fit([batch] * 1100, epochs=1)
    assert trainer.clock.steps == 1100


def test_logging_tensors_does_not_wait(batches: Any, request: pytest.FixtureRequest) -> None:
    trainer = made()
    trainer.on("after_loss")(lambda run: run.log(f"{run.stage}/mine", run.loss))
    trainer.on("after_step")(lambda run: run.log("norm", run.module[0].weight.norm()))
    request.getfixturevalue("no_host_reads")
    history = trainer.fit(*batches, epochs=2)
    assert {"train/mine", "val/mine", "norm"} <= set(history.names())


def test_a_schedule_that_needs_no_metric(batches: Any, request: pytest.FixtureRequest) -> None:
    model = tiny_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    trainer = Trainer(model, optimizer, nn.CrossEntropyLoss(), scheduler=schedule, device="cpu")
    request.getfixturevalue("no_host_reads")
    trainer.fit(*batches, epochs=2)
    assert trainer.clock.epochs == 2


def test_the_own_loop(batches: Any, request: pytest.FixtureRequest) -> None:
    train, val = batches
    trainer = made()
    request.getfixturevalue("no_host_reads")
    with trainer.run(steps=5) as run:
        for _ in run.epochs():
            for _ in run.train(train):
                run.forward()
                run.backward()
                run.step()
            for _ in run.validate(val):
                run.eval_step()
    assert trainer.clock.steps == 5


def test_the_history_is_there_when_somebody_looks(batches: Any) -> None:
    train, val = batches
    plain = made()
    plain.fit(train, val, epochs=2)
    with pytest.MonkeyPatch.context() as patch:
        for name in READS:
            patch.setattr(torch.Tensor, name, lambda *args: 1 / 0)
        silent = made()
        history = silent.fit(train, val, epochs=2)
    assert history.to_rows() == plain.history.to_rows()


def test_predictions_stay_where_they_are_if_asked(batches: Any, request: pytest.FixtureRequest) -> None:
    trainer = made()
    request.getfixturevalue("no_host_reads")
    outputs = trainer.predict(batches[0], device=None)
    assert outputs.shape == (20, 3)


def test_calls_of_synchronize_are_noted_with_their_caller() -> None:
    owners: tuple[Any, ...] = (torch.cuda, torch.accelerator, torch.cuda.Event)
    before, callers = [owner.synchronize for owner in owners], []
    with noting_synchronize(lambda caller: callers.append(caller.f_code.co_name)), contextlib.suppress(Exception):
        torch.cuda.synchronize()  # fails where there is no CUDA, after it was noted
    assert callers == ["test_calls_of_synchronize_are_noted_with_their_caller"]
    assert [owner.synchronize for owner in owners] == before
