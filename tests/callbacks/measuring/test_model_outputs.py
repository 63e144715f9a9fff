"""Models that return a mapping with attributes, as those of transformers do, and that may bring their own loss."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from cadenza import MainCallback, Trainer
from cadenza.callbacks import Metrics, accuracy, mean_absolute_error, mean_squared_error, top_k_accuracy
from cadenza.testing import tiny_classifier, tiny_loader


@dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """What a ``ModelOutput`` of transformers is: a dict of the fields that are not None, and a dataclass."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) is not None:
                super().__setitem__(field.name, getattr(self, field.name))

    def update(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a ModelOutput cannot be updated")


class Classifier(nn.Module):
    """Returns its loss if it gets labels."""

    def __init__(self, form: Callable[..., Any] = Output) -> None:
        super().__init__()
        self.inner, self.form = tiny_classifier(), form

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        scores = self.inner(x)
        more = {} if labels is None else {"loss": nn.functional.cross_entropy(scores, labels)}
        return self.form(**more, logits=scores, hidden_states=(scores * 2,))


class OwnLoss(MainCallback):
    """Measures the loss by itself, whatever the output is."""

    def on_iter_loss(self, run: Any) -> None:
        run.loss = nn.functional.cross_entropy(run.module.inner(run.inputs), run.targets)


def trainer_of(*callbacks: Any, form: Callable[..., Any] = Output, criterion: Any = None) -> Trainer:
    model = Classifier(form)
    return Trainer(model, SGD(model.parameters(), lr=0.1), criterion, callbacks=callbacks, device="cpu")


def named(sizes: int = 12) -> list[dict[str, Tensor]]:
    return [{"x": inputs, "labels": targets} for inputs, targets in tiny_loader(sizes)]


def plain_accuracy(model: nn.Module) -> float:
    inputs, targets = (torch.cat(parts) for parts in zip(*tiny_loader(12), strict=True))
    with torch.no_grad():
        return float((model(inputs).logits.argmax(1) == targets).double().mean())


# What a metric gets --------------------------------------------------------------------------------------------------


def test_a_metric_gets_the_output_as_the_model_returned_it() -> None:
    seen: list[Any] = []

    def mine(output: Any, targets: Tensor) -> Tensor:
        seen.append(output)
        return (output.logits.argmax(1) == targets).double()

    trainer = trainer_of(Metrics({"mine": mine}, stages={"train", "val"}))
    history = trainer.fit(named(), named(), epochs=2)
    assert history["val/mine"][-1] == plain_accuracy(trainer.model)
    assert {type(output) for output in seen} == {Output}
    assert all(output.logits is output["logits"] and not output.logits.requires_grad for output in seen)
    assert not any(one.requires_grad for output in seen for one in (output.loss, *output.hidden_states))


def test_mappings_that_cannot_be_made_again_are_plain_dicts_in_training() -> None:
    seen: list[Any] = []

    def mine(output: Any, targets: Tensor) -> Tensor:
        seen.append(output)
        return (output["logits"].argmax(1) == targets).double()

    def closed(**parts: Any) -> Any:
        return _Closed(parts, "a second argument")

    trainer = trainer_of(Metrics({"mine": mine}, stages={"train"}), form=closed, criterion=None)
    trainer.fit(named(), epochs=1)
    assert {type(output) for output in seen} == {dict}
    assert not any(output["logits"].requires_grad for output in seen)


class _Closed(dict):  # type: ignore[type-arg]
    def __init__(self, parts: dict[str, Any], second: str) -> None:
        super().__init__(parts)

    def __copy__(self) -> Any:
        raise TypeError("there is one of it")


# The ready ones ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [Output, dict, lambda **parts: MappingProxyType(parts), lambda **parts: type("Plain", (), parts)()],
    ids=["a ModelOutput", "a dict", "another mapping", "attributes alone"],
)
def test_the_ready_accuracy_finds_logits(form: Callable[..., Any]) -> None:
    metrics = Metrics({"accuracy": accuracy, "all": lambda output, targets: top_k_accuracy(output, targets, k=3)})
    trainer = trainer_of(OwnLoss(), metrics, form=form)
    found = trainer.validate(tiny_loader(12))
    trainer.model.form = Output  # type: ignore[assignment]
    assert found["val/accuracy"] == plain_accuracy(trainer.model)
    assert found["val/all"] == 1


def test_the_ready_measures_of_numbers_find_logits_too() -> None:
    output, targets = Output(logits=torch.tensor([[1.0], [3.0]])), torch.tensor([1.5, 3.0])
    assert mean_absolute_error(output, targets).tolist() == [0.5, 0.0]
    assert mean_squared_error({"logits": output.logits}, targets).tolist() == [0.25, 0.0]


@pytest.mark.parametrize("measure", [accuracy, top_k_accuracy, mean_absolute_error, mean_squared_error])
def test_an_output_without_logits_is_refused_with_what_to_do(measure: Any) -> None:
    with pytest.raises(TypeError, match=r"a dict with boxes.*prepare="):
        measure({"boxes": torch.ones(2, 4)}, torch.ones(2))
    with pytest.raises(TypeError, match=r"not a list.*prepare="):
        measure([torch.ones(2, 4)], torch.ones(2))


# Errors --------------------------------------------------------------------------------------------------------------


def wants_boxes(output: Any, targets: Tensor) -> Any:
    return output.boxes.sum()


def test_an_error_of_a_metric_names_prepare_and_what_it_got() -> None:
    with pytest.raises(AttributeError) as caught:
        trainer_of(Metrics({"mine": wants_boxes})).validate(named())
    notes = "\n".join(caught.value.__notes__)
    assert "the metric 'mine' of Metrics" in notes
    assert "prepare=" in notes
    assert "it got Output{'loss': float32[], 'logits': float32[8, 3]" in notes


def test_a_warning_of_a_metric_that_is_left_out_names_prepare() -> None:
    with pytest.warns(UserWarning, match=r"goes on without the metric 'mine'.*prepare="):
        trainer_of(Metrics({"mine": wants_boxes}, on_error="warn")).validate(named())


def test_an_error_behind_a_prepare_does_not_ask_for_one() -> None:
    metrics = Metrics({"mine": wants_boxes}, prepare=lambda run: (run.output, run.targets))
    with pytest.raises(AttributeError) as caught:
        trainer_of(metrics).validate(named())
    assert "prepare=" not in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("act", ["fit", "validate"])
def test_a_criterion_beside_a_model_with_its_own_loss_is_said(act: str) -> None:
    trainer = trainer_of(criterion=nn.CrossEntropyLoss())
    with pytest.raises((TypeError, AttributeError)) as caught:
        trainer.fit(named(), epochs=1) if act == "fit" else trainer.validate(named())
    notes = "\n".join(caught.value.__notes__)
    assert "the model returns its own loss; leave out criterion" in notes


def test_a_criterion_that_gets_an_output_with_logits_is_said() -> None:
    trainer = trainer_of(criterion=nn.CrossEntropyLoss())
    with pytest.raises((TypeError, AttributeError)) as caught:
        trainer.fit(tiny_loader(), epochs=1)
    notes = "\n".join(caught.value.__notes__)
    assert "run.loss = run.criterion(run.output.logits, run.targets)" in notes
    assert "the model returns its own loss" not in notes


def test_an_error_inside_a_criterion_that_takes_such_outputs_is_its_own() -> None:
    def mine(output: Output, targets: Tensor) -> Tensor:
        raise ValueError("mine")

    trainer = trainer_of(criterion=mine)
    with pytest.raises(ValueError, match="mine") as caught:
        trainer.fit(named(), epochs=1)
    assert "criterion" not in "\n".join(caught.value.__notes__)


# Which passes --------------------------------------------------------------------------------------------------------


def test_metrics_measure_validation_and_test_unless_told_otherwise() -> None:
    trainer = trainer_of(Metrics({"accuracy": accuracy}))
    history = trainer.fit(named(), named(), epochs=1, test_loaders=named())
    assert {"val/accuracy", "test/accuracy"} <= set(history.names())
    assert "train/accuracy" not in history
    assert trainer.test(named())["test/accuracy"] == plain_accuracy(trainer.model)
    only = trainer_of(Metrics({"accuracy": accuracy}, stages={"val"}))
    assert "test/accuracy" not in only.test(named())
