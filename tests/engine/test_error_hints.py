"""An error of the model, of the loss or of a behaviour comes with what its reader should know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from cadenza import Callback, MainCallback, Trainer
from cadenza.testing import tiny_classifier, tiny_loader


def notes_of(act: Callable[[], Any]) -> list[str]:
    with pytest.raises((AttributeError, RuntimeError, TypeError, ValueError), match=r".") as caught:
        act()
    return getattr(caught.value, "__notes__", [])


def made(*callbacks: Callback, model: nn.Module | None = None, criterion: Any = None) -> Trainer:
    model = tiny_classifier() if model is None else model
    return Trainer(model, SGD(model.parameters(), lr=0.1), criterion, callbacks=callbacks, device="cpu")


class ReturnsLoss(MainCallback):
    def on_iter_loss(self, run: Any) -> Any:
        return nn.functional.cross_entropy(run.output, run.targets)


class ReturnsOutput(MainCallback):
    def on_iter_forward(self, run: Any) -> Any:
        return run.model(run.inputs)


@pytest.mark.parametrize("beside", [[], [type("Opens", (Callback,), {"before_loss": lambda self, run: None})()]])
def test_behaviours_that_return_instead_of_setting(beside: list[Callback]) -> None:
    loss = notes_of(lambda: made(ReturnsLoss(), *beside).fit(tiny_loader(), epochs=1))
    assert any("run.loss was not set" in note for note in loss)
    output = notes_of(
        lambda: made(ReturnsOutput(), *beside, criterion=nn.CrossEntropyLoss()).fit(tiny_loader(), epochs=1)
    )
    assert any("ReturnsOutput has made its forward and set no run.output" in note for note in output)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda loss: loss.detach(), "run.loss has no graph"),
        (lambda loss: loss.item(), "it must be a tensor with its graph"),
        (lambda loss: None, "run.loss is None"),
        (lambda loss: loss.repeat(3), "run.loss has the shape [3]"),
    ],
    ids=["detached", "number", "none", "three"],
)
def test_a_loss_that_cannot_be_back_propagated(change: Callable[[Tensor], Any], words: str) -> None:
    trainer = made(criterion=nn.CrossEntropyLoss())

    @trainer.on("after_loss")
    def spoil(run: Any) -> None:
        run.loss = change(run.loss)

    notes = notes_of(lambda: trainer.fit(tiny_loader(), epochs=1))
    assert "raised in run.train_step() (epoch 1, train batch 1)" in notes[0]
    assert any(words in note for note in notes)


def test_the_form_of_the_batch_stands_beside_an_error_of_the_model() -> None:
    batch = (torch.zeros(8, 5), torch.zeros(8, dtype=torch.long))
    trainer = made(criterion=nn.CrossEntropyLoss())
    for act in (
        lambda: trainer.fit([batch], epochs=1),
        lambda: trainer.validate([batch]),
        lambda: trainer.predict([batch]),
    ):
        assert notes_of(act)[-1] == "cadenza: the batch was tuple(float32[8, 5], int64[8])"


class Headed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def test_a_dict_whose_names_the_model_does_not_take() -> None:
    batch = {"x": torch.zeros(8, 4), "labels": torch.zeros(8, dtype=torch.long)}
    made(model=Headed(), criterion=nn.CrossEntropyLoss()).fit([batch], epochs=1)
    more = {**batch, "index": torch.arange(8)}
    notes = notes_of(lambda: made(model=Headed(), criterion=nn.CrossEntropyLoss()).fit([more], epochs=1))
    assert "called x, labels, index; Headed.forward does not take these by name" in notes[-1]


def test_an_error_of_a_callback_has_its_place_and_nothing_more() -> None:
    class Fails(Callback):
        def after_forward(self, run: Any) -> None:
            raise ValueError("mine")

    notes = notes_of(lambda: made(Fails(), criterion=nn.CrossEntropyLoss()).fit(tiny_loader(), epochs=1))
    assert notes == ["cadenza: raised in Fails at after_forward (epoch 1, train batch 1)"]


def test_the_output_for_a_batch_of_one_is_no_loss() -> None:
    model = nn.Linear(4, 1)
    with pytest.raises(TypeError, match="there is no criterion, and the model returned no loss"):
        made(model=model).fit([(torch.ones(1, 4), torch.ones(1, 1))], epochs=1)


def test_the_fetch_that_finds_the_end_has_no_batch() -> None:
    trainer = made(criterion=nn.CrossEntropyLoss())
    trainer.on("after_fetch")(lambda run: run.inputs)
    with pytest.raises(
        AttributeError, match=r"this fetch \(train\) found the end of the loader.*hasattr\(run, \"inputs"
    ):
        trainer.fit(tiny_loader(), epochs=1)
    trainer.remove(trainer.callbacks[0])
    trainer.on("before_iter")(lambda run: run.inputs)
    trainer.fit(tiny_loader(), epochs=1)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("losss", "run.loss?"),
        ("lr", 'run.optimizer.param_groups[0]["lr"]?'),
        ("vocabulary", "run.store"),
        ("logg", "run.log?"),
    ],
)
def test_a_name_that_a_run_does_not_have(name: str, meant: str) -> None:
    trainer = made(criterion=nn.CrossEntropyLoss())
    trainer.on("after_epoch")(lambda run: getattr(run, name))
    notes = notes_of(lambda: trainer.fit(tiny_loader(), epochs=1))
    assert f"a run has no {name!r}" in notes[-1]
    assert notes[-1].endswith(meant)


@pytest.mark.parametrize(
    ("name", "meant"), [("target", r"run\.targets"), ("lr", "param_groups"), ("vocabulary", r"run\.store")]
)
def test_a_name_that_was_set_and_means_nothing(name: str, meant: str) -> None:
    trainer = made(criterion=nn.CrossEntropyLoss())
    trainer.on("after_fetch")(lambda run: setattr(run, name, 1))
    with pytest.warns(UserWarning, match=rf"run\.{name} was set, which means nothing to the run.*{meant}") as told:
        trainer.fit(tiny_loader(), epochs=1)
    assert [one.filename for one in told] == [__file__]
