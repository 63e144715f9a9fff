"""Bad input gets a clear error, changes nothing, and leaves a trainer that works."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, IterableDataset

from cadenza import Callback, CallbackError, Trainer
from cadenza.testing import Recorder, tiny_classifier, tiny_data, tiny_loader


class Unsized:
    """A loader that does not know its length."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class NoData(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def state_of(trainer: Trainer) -> dict[str, Any]:
    """Everything that a refused call must leave alone."""
    clock = trainer.clock.state_dict()
    return {
        "weights": [value.clone() for value in trainer.model.state_dict().values()],
        "optimizer": [len(optimizer.state) for optimizer in trainer._training.optimizers],
        "clock": {unit: clock[unit] for unit in clock if unit != "seconds"},
        "history": trainer.history.to_rows(),
        "callbacks": trainer.callbacks,
        "flags": [module.training for module in trainer.model.modules()],
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
    }


def assert_unchanged(trainer: Trainer, before: dict[str, Any]) -> None:
    after = state_of(trainer)
    assert all(torch.equal(a, b) for a, b in zip(after["weights"], before["weights"], strict=True))
    for name in after.keys() - {"weights"}:
        assert after[name] == before[name], name


def assert_usable(trainer: Trainer) -> None:
    """It trains exactly as one that never saw the bad input."""
    fresh = plain_trainer()
    fresh.fit(tiny_loader(), tiny_loader(8), epochs=2)
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=2)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, fresh.model.state_dict()[name])
    assert trainer.history["train/loss"] == fresh.history["train/loss"]


def plain_trainer(*callbacks: Callback, **more: Any) -> Trainer:
    model = tiny_classifier()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", **more)


def refused(act: Callable[[Trainer], Any], error: type[Exception], *words: str, **more: Any) -> BaseException:
    """``act`` raises ``error`` with all ``words`` in its message; the trainer is as before and can be used."""
    trainer = plain_trainer(**more)
    before = state_of(trainer)
    with pytest.raises(error) as caught:
        act(trainer)
    for word in words:
        assert word in str(caught.value)
    assert_unchanged(trainer, before)
    assert_usable(trainer)
    return caught.value


# How far -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("amount", [0, -1, 1.5, True, "3"])
@pytest.mark.parametrize("unit", ["epochs", "steps"])
def test_amounts_that_are_none(unit: str, amount: Any) -> None:
    refused(lambda trainer: trainer.fit(tiny_loader(), **{unit: amount}), ValueError, unit, "at least 1", repr(amount))


def test_both_epochs_and_steps() -> None:
    refused(lambda trainer: trainer.fit(tiny_loader(), epochs=1, steps=1), ValueError, "epochs or steps, not both")
    refused(lambda trainer: trainer.run(epochs=1, steps=1), ValueError, "epochs or steps, not both")


def test_neither_epochs_nor_steps() -> None:
    refused(lambda trainer: trainer.fit(tiny_loader()), ValueError, "epochs=10", "steps=1000")


def test_an_own_loop_without_an_end() -> None:
    def act(trainer: Trainer) -> None:
        with trainer.run() as run:
            run.epochs()

    refused(act, ValueError, "how far to train")


def test_a_refused_call_does_not_seed() -> None:
    refused(lambda trainer: trainer.fit(tiny_loader(), epochs=0), ValueError, "epochs", seed=3)


@pytest.mark.parametrize("every", ["often", "0 steps", "0.5 epochs", "3 fortnights", 5, None, "-1 epoch"])
def test_intervals_of_validation(every: Any) -> None:
    refused(lambda trainer: trainer.fit(tiny_loader(), tiny_loader(), epochs=1, validate_every=every), ValueError)


# Loaders -------------------------------------------------------------------------------------------------------------

EMPTY = [
    [],
    DataLoader(tiny_data(4), batch_size=8, drop_last=True),
    Unsized(),
    DataLoader(NoData(), generator=torch.Generator()),
]
NAMES = ["list", "loader", "unsized", "stream"]


@pytest.mark.parametrize("empty", EMPTY, ids=NAMES)
def test_an_empty_training_loader(empty: Any) -> None:
    refused(lambda trainer: trainer.fit(empty, epochs=1), ValueError, "train", "no batch")


@pytest.mark.parametrize("empty", EMPTY[:2], ids=NAMES[:2])
def test_an_empty_loader_with_a_length_is_refused_before_training(empty: Any) -> None:
    refused(lambda trainer: trainer.fit(tiny_loader(), empty, epochs=1), ValueError, "val_loader", "empty")
    refused(lambda trainer: trainer.fit(tiny_loader(), {"old": empty}, epochs=1), ValueError, "'old'", "empty")
    refused(lambda trainer: trainer.fit(tiny_loader(), test_loaders=empty, epochs=1), ValueError, "empty")


@pytest.mark.parametrize("empty", EMPTY, ids=NAMES)
@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_nothing_to_go_over(verb: str, empty: Any) -> None:
    refused(lambda trainer: getattr(trainer, verb)(empty), ValueError, "no batch")


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_no_loaders_in_a_dict(verb: str) -> None:
    refused(lambda trainer: getattr(trainer, verb)({}), ValueError, "empty dict")


def test_an_empty_dict_of_loaders_is_no_way_to_say_none() -> None:
    refused(lambda trainer: trainer.fit(tiny_loader(), {}, epochs=1), ValueError, "val_loader", "empty dict")


@pytest.mark.parametrize("names", [(1, 0), ("", "b")])
def test_names_of_loaders_are_texts(names: Any) -> None:
    loaders = {name: list(tiny_loader(8)) for name in names}
    refused(lambda trainer: trainer.validate(loaders), (TypeError, ValueError), "name")


def test_a_dict_where_one_loader_is_wanted() -> None:
    loaders = {"a": list(tiny_loader())}
    refused(lambda trainer: trainer.fit(loaders, epochs=1), (TypeError, ValueError), "train_loader", "dict")
    refused(lambda trainer: trainer.predict(loaders), (TypeError, ValueError), "loader", "one", "dict")


@pytest.mark.parametrize("wrong", [None, 3, tiny_data()], ids=["none", "number", "dataset"])
def test_what_is_no_loader(wrong: Any) -> None:
    refused(lambda trainer: trainer.fit(wrong, epochs=1), TypeError, "train_loader", "iterable", type(wrong).__name__)
    refused(lambda trainer: trainer.fit(tiny_loader(), {"a": wrong}, epochs=1), TypeError, "'a'", "iterable")


# Batches and values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", ["text", 7, None, (), object()], ids=["text", "number", "none", "()", "object"])
@pytest.mark.parametrize("callbacks", [(), (Recorder,)], ids=["bare", "opened"])
def test_a_batch_that_is_not_understood(batch: Any, callbacks: Any) -> None:
    trainer = plain_trainer(*(make() for make in callbacks))
    before = state_of(trainer)
    for act in (
        lambda: trainer.fit([batch], epochs=1),
        lambda: trainer.validate([batch]),
        lambda: trainer.predict([batch]),
    ):
        with pytest.raises(TypeError, match="does not understand a batch of the form"):
            act()
        assert_unchanged(trainer, before)
    assert_usable(trainer)


@pytest.mark.parametrize("batch", [torch.zeros(2, 4), [torch.zeros(2, 4)]], ids=["tensor", "list of one"])
def test_a_batch_without_targets_for_the_criterion(batch: Any) -> None:
    refused(lambda trainer: trainer.fit([batch], epochs=1), TypeError, "no targets", "tensor[2, 4]")


def test_no_criterion_and_no_loss() -> None:
    model = tiny_classifier()
    trainer = Trainer(model, SGD(model.parameters(), lr=0.1), device="cpu")
    ready = list(tiny_loader())
    before = state_of(trainer)
    with pytest.raises(TypeError, match="criterion"):
        trainer.fit(ready, epochs=1)
    assert_unchanged(trainer, before)


@pytest.mark.parametrize("samples", [24, 20, 8], ids=["even", "ragged", "one batch"])
def test_a_loss_of_many_numbers(samples: int) -> None:
    model = tiny_classifier()
    trainer = Trainer(model, SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none"), device="cpu")
    ready = list(tiny_loader(samples))
    before = state_of(trainer)
    with pytest.raises(ValueError, match=r"run\.loss must be one number"):
        trainer.validate(ready)
    assert_unchanged(trainer, before)


@pytest.mark.parametrize("name", [3, None, "", b"loss", ("a",)])
def test_names_of_metrics_are_texts(name: Any) -> None:
    trainer = plain_trainer()
    trainer.on("before_run")(lambda run: run.log(name, 1.0))
    with pytest.raises(TypeError, match="name of a metric is a text"):
        trainer.fit(tiny_loader(), epochs=1)
    assert not trainer.history.names()


VALUES = [torch.zeros(2), torch.zeros(0), torch.zeros(1, dtype=torch.complex64), "3", None, [1.0], 1j, {"a": 1}]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_of_metrics_are_scalars(value: Any) -> None:
    trainer = plain_trainer()
    trainer.on("before_run")(lambda run: run.log("mine", value))
    with pytest.raises((TypeError, ValueError), match="metric 'mine' must be") as caught:
        trainer.fit(tiny_loader(), epochs=1)
    assert any("before_run" in note for note in caught.value.__notes__)
    assert trainer.clock.steps == 0
    assert not trainer.history.names()


# The trainer itself --------------------------------------------------------------------------------------------------


def test_a_model_without_parameters() -> None:
    model, weight = nn.ReLU(), nn.Parameter(torch.zeros(1))
    trainer = Trainer(model, SGD([weight], lr=0.1), nn.MSELoss(), device="cpu")
    with pytest.raises(ValueError, match="no parameter that could be trained"):
        trainer.fit([(torch.zeros(1), torch.zeros(1))], epochs=1)
    assert trainer.predict([torch.tensor([-1.0, 2.0])]).tolist() == [0.0, 2.0]


def test_a_model_of_frozen_parameters() -> None:
    trainer = plain_trainer()
    trainer.model.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that could be trained"):
        trainer.fit(tiny_loader(), epochs=1)
    trainer.model.requires_grad_(True)
    assert_usable(trainer)


def test_without_an_optimizer_one_can_validate_and_not_train() -> None:
    trainer = Trainer(tiny_classifier(), criterion=nn.CrossEntropyLoss(), device="cpu")
    with pytest.raises(ValueError, match="needs an optimizer"):
        trainer.fit(tiny_loader(), epochs=1)
    assert set(trainer.validate(tiny_loader())) == {"val/loss"}


def test_what_a_trainer_is_made_of() -> None:
    model = tiny_classifier()
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, not function"):
        Trainer(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"optimizer must be .* not CrossEntropyLoss"):
        Trainer(model, nn.CrossEntropyLoss())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"scheduler must be .*step\(\).* not str"):
        Trainer(model, scheduler="cosine")
    for word, value in (("execution", "quick"), ("strategy", "magic")):
        with pytest.raises(ValueError, match=f"{word} .*'{value}'"):
            Trainer(model, **{word: value})


@pytest.mark.parametrize(
    "wrong", [Recorder(), {Recorder()}, {"a": Recorder()}, iter([]), None, "abc"], ids=lambda w: type(w).__name__
)
def test_callbacks_that_are_no_list(wrong: Any) -> None:
    with pytest.raises(CallbackError, match=f"callbacks must be a list, not {type(wrong).__name__}"):
        Trainer(tiny_classifier(), callbacks=wrong, device="cpu")
