"""A loader that fails in the middle: the error goes through and says where, and everything that is held is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from cadenza import Callback, Run, Trainer
from cadenza.testing import Recorder, tiny_classifier, tiny_loader


class Breaking:
    """Gives ``good`` batches and then raises; with ``length`` it also says how many there would be."""

    def __init__(self, good: int, error: BaseException) -> None:
        self.good, self.error = good, error

    def __iter__(self) -> Iterator[Any]:
        yield from list(tiny_loader())[: self.good]
        raise self.error


class Closed(Callback):
    """Counts how often it was closed, and keeps what it saw when the run failed."""

    def __init__(self) -> None:
        self.closed = 0
        self.error: BaseException | None = None
        self.fields: list[str] = []

    def after_error(self, run: Run) -> None:
        self.error = run.error
        self.fields = [name for name in ("batch", "output", "loss") if hasattr(run, name)]

    def close(self) -> None:
        self.closed += 1


def made(*callbacks: Callback) -> Trainer:
    model = tiny_classifier()
    optimizer = SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")


def failing(act: Callable[[], Any], error: BaseException) -> str:
    """Runs ``act``; the very ``error`` comes out of it. Returns its notes."""
    with pytest.raises(type(error)) as caught:
        act()
    assert caught.value is error
    return "\n".join(getattr(error, "__notes__", []))


def assert_all_left(recorder: Recorder, kind: str, innermost: str = "fetch") -> None:
    """Every around that was entered was left, in reverse order; those open at the error were left with it."""
    open_spans: list[str] = []
    left_with_error: list[str] = []
    for entry in recorder.trace:
        if entry.startswith("enter_"):
            open_spans.append(entry.removeprefix("enter_"))
        elif entry.startswith("exit_"):
            span, _, error = entry.removeprefix("exit_").partition(" ")
            assert open_spans.pop() == span
            assert error == (kind if error or left_with_error else ""), f"{span} was left without the error"
            left_with_error += [span] if error else []
    assert open_spans == []
    assert left_with_error[0] == innermost
    assert left_with_error[-1] == "run"


CASES: dict[str, Callable[[Trainer, Any], Any]] = {
    "train": lambda trainer, loader: trainer.fit(loader, epochs=2),
    "val": lambda trainer, loader: trainer.fit(tiny_loader(), loader, epochs=2),
    "test": lambda trainer, loader: trainer.fit(tiny_loader(), test_loaders={"held out": loader}, epochs=2),
    "val in between": lambda trainer, loader: trainer.fit(tiny_loader(), loader, epochs=2, validate_every="2 steps"),
    "validate": lambda trainer, loader: trainer.validate(loader),
    "predict": lambda trainer, loader: trainer.predict(loader),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt, RuntimeError])
def test_the_error_goes_through_and_all_is_left(case: str, kind: type[BaseException]) -> None:
    recorder, closed = Recorder(arounds=True), Closed()
    trainer, error = made(recorder, closed), kind("the disk is gone")
    flags = [module.training for module in trainer.model.modules()]
    notes = failing(lambda: CASES[case](trainer, Breaking(2, error)), error)

    stage = {"validate": "val", "predict": "pred"}.get(case, case.split()[0])
    assert f"the {stage} loader" in notes
    assert "after 2 batches" in notes
    assert ("epoch 1" in notes) == (case not in ("validate", "predict"))
    assert notes.count("cadenza:") == 1
    assert_all_left(recorder, kind.__name__)
    assert "after_run" not in recorder.trace
    assert recorder.trace.count("after_error") == 1
    assert closed.error is error
    assert closed.closed == 1
    assert [module.training for module in trainer.model.modules()] == flags


def test_what_was_trained_before_the_error_counts() -> None:
    trainer = made()
    failing(lambda: trainer.fit(Breaking(2, error), epochs=1), error := OSError("gone"))
    assert (trainer.clock.steps, trainer.clock.batches, trainer.clock.epochs) == (2, 2, 0)
    by_hand = made()
    by_hand.fit(list(tiny_loader())[:2], epochs=1)
    assert all(map(torch.equal, trainer.model.parameters(), by_hand.model.parameters()))


def test_the_trainer_and_its_callbacks_can_be_used_again() -> None:
    closed = Closed()
    trainer = made(closed)
    failing(lambda: trainer.fit(Breaking(0, error), epochs=1), error := OSError("gone"))
    fresh = made()
    for one in (trainer, fresh):
        one.fit(tiny_loader(), tiny_loader(8), epochs=2)
    assert all(map(torch.equal, trainer.model.parameters(), fresh.model.parameters()))
    assert trainer.history["val/loss"] == fresh.history["val/loss"]
    trainer.remove(closed)
    made(closed).fit(tiny_loader(), epochs=1)
    assert closed.closed == 3


def test_the_failed_epoch_is_played_again_under_its_number() -> None:
    trainer = made()
    trainer.fit(tiny_loader(), epochs=1)
    failing(lambda: trainer.fit(Breaking(1, error), epochs=1), error := OSError("gone"))
    history = trainer.fit(tiny_loader(), epochs=1)
    assert [row["epoch"] for row in history.epochs] == [0, 1]


def test_a_loader_that_cannot_begin() -> None:
    class NoBeginning:
        def __iter__(self) -> Iterator[Any]:
            raise error

    error = PermissionError("not yours")
    recorder = Recorder(arounds=True)
    notes = failing(lambda: made(recorder).fit(NoBeginning(), epochs=1), error)
    assert "train loader" in notes
    assert "-1" not in notes
    assert_all_left(recorder, "PermissionError", innermost="train_epoch")


def test_a_generator_has_nothing_for_a_second_epoch() -> None:
    trainer = made()
    with pytest.raises(ValueError, match="the train loader gave no batch") as caught:
        trainer.fit((batch for batch in tiny_loader()), epochs=2)
    assert "epoch 2" in "\n".join(caught.value.__notes__)
    assert "-1" not in "\n".join(caught.value.__notes__)
    assert trainer.clock.epochs == 1


@pytest.mark.parametrize("callbacks", [(), (Recorder,)], ids=["bare", "opened"])
def test_an_error_of_the_model_says_where(callbacks: Any) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = tiny_classifier(), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls == 5:
                raise ZeroDivisionError("deep inside")
            return self.inner(x)

    model = Fails()
    made_of = [make() for make in callbacks]
    trainer = Trainer(model, SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), callbacks=made_of, device="cpu")
    with pytest.raises(ZeroDivisionError) as caught:
        trainer.fit(tiny_loader(), epochs=2)
    (note,) = caught.value.__notes__
    assert "train_step" in note
    assert "epoch 2" in note
    assert "train batch 2" in note


def test_the_fields_are_readable_at_after_error() -> None:
    closed = Closed()
    trainer = made(closed)
    trainer.on("after_backward")(lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        trainer.fit(tiny_loader(), epochs=1)
    assert closed.fields == ["batch", "output", "loss"]
    assert any("<lambda> at after_backward" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("point", ["before_train_iter", "after_train_iter", "after_iter", "after_val_epoch"])
def test_an_error_of_a_callback_outside_the_step(point: str) -> None:
    recorder = Recorder(arounds=True)
    trainer = made(recorder)
    trainer.on(point)(lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(tiny_loader(), tiny_loader(8), epochs=1)
    innermost = {"before_train_iter": "iter", "after_train_iter": "iter", "after_iter": "train_epoch"}
    assert_all_left(recorder, "ZeroDivisionError", innermost=innermost.get(point, "epoch"))


def test_an_error_in_the_body_of_an_own_loop() -> None:
    def own_loop() -> None:
        with made(recorder).run(epochs=1) as run:
            for _ in run.epochs():
                for _ in run.train(tiny_loader()):
                    raise error

    recorder, error = Recorder(arounds=True), OSError("body")
    failing(own_loop, error)
    assert_all_left(recorder, "OSError", innermost="train_iter")


def test_an_around_cannot_swallow_the_error() -> None:
    trainer, left = made(), []

    @trainer.on("around_epoch")
    def swallow(run: Run) -> Iterator[None]:
        try:
            yield
        except OSError:
            left.append("swallowed")

    failing(lambda: trainer.fit(Breaking(1, error), epochs=1), error := OSError("gone"))
    assert left == ["swallowed"]


def test_errors_on_the_way_out_become_notes() -> None:
    class Bad(Closed):
        def close(self) -> None:
            super().close()
            raise ValueError("close failed too")

    bad, good = Bad(), Closed()
    notes = failing(lambda: made(bad, good).fit(Breaking(1, error), epochs=1), error := OSError("gone"))
    assert "close failed too" in notes
    assert "Bad.close" in notes
    assert (bad.closed, good.closed) == (1, 1)
