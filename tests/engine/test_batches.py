"""What the default behaviour makes of a batch: inputs and targets, the model's own loss, predictions, counts, means."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from cadenza import Callback, MainCallback, Trainer
from cadenza.data import join, split
from cadenza.testing import Recorder, tiny_classifier

X, Y = torch.arange(12.0).reshape(3, 4) / 10, torch.tensor([0, 2, 1])
WATCHED = pytest.mark.parametrize("callbacks", [(), (Recorder,)], ids=["bare", "opened"])


class Named(NamedTuple):
    x: Tensor
    y: Tensor


class Swapped(NamedTuple):
    label: Tensor
    x: Tensor


class Unnamed(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Record:
    x: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    labels: Tensor


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = tiny_classifier()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class ByPosition(ByName):
    def forward(self, first: Tensor) -> Tensor:
        return self.layer(first)


class Whole(ByName):
    """Takes the whole batch, as a dict."""

    def forward(self, batch: Any) -> Tensor:
        return self.layer(batch["x"])


class WholeObject(ByName):
    """Takes the whole batch, as an object."""

    def forward(self, batch: Any) -> Tensor:
        return self.layer(batch.x)


class Anything(ByName):
    def forward(self, **parts: Any) -> Tensor:
        return self.layer(parts["x"])


def made(model: nn.Module, *callbacks: Callback, criterion: Any = nn.functional.cross_entropy) -> Trainer:
    trained = [*model.parameters()]
    optimizer = SGD(trained, lr=0.1) if trained else None
    return Trainer(model, optimizer, criterion, callbacks=callbacks, device="cpu")


BATCHES: dict[str, tuple[Any, Callable[[], nn.Module]]] = {
    "tuple": ((X, Y), ByPosition),
    "list": ([X, Y], ByPosition),
    "named tuple by name": (Named(X, Y), ByName),
    "named tuple with the target first": (Swapped(Y, X), ByName),
    "named tuple without a target name": (Unnamed(X, Y), ByPosition),
    "named tuple by position": (namedtuple("Pair", "image label")(X, Y), ByPosition),
    "dict by name": ({"x": X, "y": Y}, ByName),
    "dict, label": ({"label": Y, "x": X}, ByName),
    "dict, labels": ({"x": X, "labels": Y}, Whole),
    "dict, target": ({"x": X, "target": Y, "id": ["a", "b", "c"]}, Whole),
    "dict, targets": ({"x": X, "targets": Y}, Anything),
    "ordered dict": (OrderedDict(x=X, y=Y), ByName),
    "mapping": (UserDict(x=X, y=Y), Whole),
    "dataclass": (Record(X, Y), ByName),
    "frozen dataclass": (Frozen(X, Y), ByName),
    "dataclass whole": (Record(X, Y), WholeObject),
}


@WATCHED
@pytest.mark.parametrize("form", BATCHES)
def test_every_form_trains_validates_and_predicts(form: str, callbacks: Any) -> None:
    batch, make = BATCHES[form]
    model = make()
    expected = model.layer(X).detach()
    loss = nn.functional.cross_entropy(expected, Y)
    trainer = made(model, *(callback() for callback in callbacks))
    assert torch.equal(trainer.predict([batch, batch]), torch.cat([expected, expected]))
    assert trainer.validate([batch]) == {"val/loss": float(loss)}
    assert trainer.fit([batch], epochs=1)["train/loss"] == [float(loss)]
    assert trainer.clock.samples == 3


class Sum(nn.Module):
    """Adds what it gets, with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, *parts: Any) -> Tensor:
        first, *rest = (sum(part) if isinstance(part, list | tuple) else part for part in parts)
        return self.weight * sum(rest, first)


@pytest.mark.parametrize(
    "batch",
    [(X, 2 * X, X.sum(1)), [X, 2 * X, X.sum(1)], ((X, 2 * X), X.sum(1)), ([X, 2 * X], X.sum(1))],
    ids=["many inputs", "list of many", "nested tuple", "nested list"],
)
@WATCHED
def test_many_inputs_and_nested_batches(batch: Any, callbacks: Any) -> None:
    seen: list[Any] = []

    def criterion(output: Tensor, targets: Tensor) -> Tensor:
        seen.append((output.detach(), targets))
        return output.sum()

    trainer = made(Sum(), *(callback() for callback in callbacks), criterion=criterion)
    assert torch.equal(trainer.predict([batch]), 3 * X)
    trainer.fit([batch], epochs=1)
    output, targets = seen[0]
    assert torch.equal(output, 3 * X)
    assert targets is batch[-1]


@WATCHED
def test_targets_that_are_none_reach_the_criterion(callbacks: Any) -> None:
    """Watching does not change what is understood."""
    trainer = made(Sum(), *(callback() for callback in callbacks), criterion=lambda output, targets: output.sum())
    trainer.fit([(X, None)], epochs=1)
    assert trainer.clock.steps == 1


def test_one_main_callback_for_two_models() -> None:
    main = MainCallback()
    for model in (ByName(), Whole()):
        trainer = made(model, main)
        trainer.fit([{"x": X, "y": Y}], epochs=1)
        assert trainer.clock.steps == 1


# A loss of the model's own --------------------------------------------------------------------------------------------


@dataclass
class Result:
    loss: Tensor
    logits: Tensor


RETURNS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "scalar": lambda loss, logits: loss,
    "one element": lambda loss, logits: loss.reshape(1),
    "dict": lambda loss, logits: {"logits": logits, "loss": loss},
    "object": lambda loss, logits: Result(loss, logits),
    "tuple": lambda loss, logits: (loss, logits),
    "named tuple": lambda loss, logits: namedtuple("Out", "logits loss")(logits, loss),
}


class WithLoss(ByName):
    def __init__(self, returns: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.returns = returns

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.layer(x)
        return logits if labels is None else self.returns(nn.functional.cross_entropy(logits, labels), logits)


@WATCHED
@pytest.mark.parametrize("form", RETURNS)
def test_models_that_return_their_loss(form: str, callbacks: Any) -> None:
    model = WithLoss(RETURNS[form])
    logits = model.layer(X).detach()
    loss = float(nn.functional.cross_entropy(logits, Y))
    trainer = made(model, *(callback() for callback in callbacks), criterion=None)
    batch = {"x": X, "labels": Y}
    assert trainer.validate([batch])["val/loss"] == loss
    assert torch.equal(trainer.predict([batch]), logits)
    assert trainer.fit([batch], epochs=1)["train/loss"] == [loss]
    assert not torch.equal(model.layer(X), logits)


# Parts of a batch ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [name for name in BATCHES if "whole" not in name and "by position" not in name])
def test_assigning_inputs_and_targets_changes_the_batch(form: str) -> None:
    batch, make = BATCHES[form]
    seen: list[Any] = []
    trainer = made(make())

    @trainer.on("before_train_iter")
    def change(run: Any) -> None:
        inputs = run.inputs
        run.inputs = {**inputs, "x": inputs["x"] * 0} if isinstance(inputs, dict) else inputs * 0
        run.targets = torch.zeros_like(run.targets)
        seen.append((run.batch, run.inputs, run.targets))

    trainer.fit([batch], epochs=1)
    (changed, inputs, targets) = seen[0]
    assert type(changed) is type(batch)
    assert not (inputs["x"] if isinstance(inputs, dict) else inputs).any()
    assert not targets.any()
    assert split(batch)[1] is Y, "the loader's own batch is not touched"
    expected = nn.functional.cross_entropy(make().layer(X * 0), Y * 0).detach()
    assert trainer.history["train/loss"] == [float(expected)]


def test_what_was_assigned_is_what_is_read() -> None:
    batch = join({"a": 1, "b": 2, "y": 3}, inputs={"a": 5})
    assert split(batch) == ({"a": 5}, 3)
    assert split(join({"x": 1, "y": 2, "label": 3}, targets={"y": 7, "label": 8})) == ({"x": 1}, {"y": 7, "label": 8})
    assert join((1, 2, 3), inputs=(7, 8)) == (7, 8, 3)
    with pytest.raises(ValueError, match="no targets to replace"):
        join([X], targets=Y)


def test_parts_outside_an_iteration() -> None:
    trainer, said = made(tiny_classifier()), []

    @trainer.on("before_train_epoch")
    def ask(run: Any) -> None:
        for name in ("inputs", "targets", "batch"):
            with pytest.raises(AttributeError, match=f"run.{name} exists from after_fetch"):
                getattr(run, name)
            said.append(name)
        with pytest.raises(
            AttributeError, match=r"run\.inputs exists from after_fetch .* you are at before_train_epoch"
        ):
            run.inputs = X

    trainer.fit([(X, Y)], epochs=1)
    assert said == ["inputs", "targets", "batch"]
