"""What the front door refuses before anything is made: classes for instances, objects that could not act, tensors for
loaders."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ChainedScheduler, StepLR
from torch.utils.data import DataLoader

from cadenza import Callback, Trainer
from cadenza.experiment import Experiment
from cadenza.testing import tiny_classifier, tiny_data, tiny_loader


def made(**arguments: Any) -> Trainer:
    model = tiny_classifier()
    given = {"optimizer": SGD(model.parameters(), lr=0.1), "criterion": nn.CrossEntropyLoss(), "device": "cpu"}
    return Trainer(model, **{**given, **arguments})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"optimizer": Adam}, "optimizer is the class Adam; give an instance"),
        ({"criterion": nn.MSELoss}, r"criterion is the class MSELoss; give an instance: MSELoss\(\)"),
        ({"criterion": "mse"}, "criterion must be a function of output and targets, not str"),
        ({"scheduler": StepLR}, "scheduler is the class StepLR; give an instance"),
        ({"experiment": Experiment}, "experiment is the class Experiment; give an instance"),
        ({"experiment": "digits"}, "experiment must be an Experiment, such as .*, not 'digits'"),
        ({"experiment": Path("runs")}, "experiment must be an Experiment"),
        ({"seed": "1"}, "seed must be a whole number or None, not '1'"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"device": None}, "device must be .* not None"),
    ],
    ids=str,
)
def test_arguments_of_another_kind(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        made(**arguments)


def test_a_class_in_place_of_a_model() -> None:
    with pytest.raises(TypeError, match=r"model is the class Linear; give an instance: Linear\(\.\.\.\)"):
        Trainer(nn.Linear)  # type: ignore[arg-type]


def test_a_device_that_torch_does_not_know() -> None:
    with pytest.raises(RuntimeError, match="not 'gpu'; did you mean 'cuda'"):
        made(device="gpu")


@pytest.mark.parametrize(
    ("device", "gpus", "words"),
    [
        ("cuda", 0, 'device="cuda" is not there: .*"auto" takes what there is, or else the CPU'),
        ("cuda:7", 2, 'device="cuda:7" is not there: there are 2 GPUs, and the first is cuda:0'),
        (torch.device("cuda", 1), 1, 'device="cuda:1" is not there: there is 1 GPU'),
        ("mps", 0, 'device="mps" is not there: torch finds no Apple GPU'),
    ],
    ids=str,
)
def test_a_device_that_is_not_there(device: Any, gpus: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=words):
        made(device=device)
    with pytest.raises(RuntimeError, match=words):
        made().predict(tiny_loader(8), device=device)


@pytest.mark.parametrize("built", [True, False])
def test_why_there_is_no_gpu(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "12.8" if built else None)
    with pytest.raises(RuntimeError, match="nvidia-smi" if built else "built without CUDA"):
        made(device="cuda")


# When to validate -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", ["2 steps", "2 epochs", "300 seconds"])
def test_when_to_validate_without_anything_to_validate(every: str) -> None:
    with pytest.warns(UserWarning, match=f'validate_every="{every}" has no effect') as told:
        made().fit(tiny_loader(), epochs=2, validate_every=every)
    assert [one.filename for one in told] == [__file__]


def test_when_to_validate_says_when_to_test_too() -> None:
    history = made().fit(tiny_loader(), test_loaders=tiny_loader(8), epochs=2, validate_every="2 epochs")
    assert len(history["test/loss"]) == 1


def test_a_callback_may_bring_what_is_validated() -> None:
    trainer = made()
    trainer.on("before_run")(lambda run: setattr(run, "val_loader", tiny_loader(8)))
    assert len(trainer.fit(tiny_loader(), epochs=2, validate_every="2 steps")["val/loss"]) == 3


@pytest.mark.parametrize(
    ("limit", "every"),
    [({"epochs": 2}, "3 epochs"), ({"steps": 4}, "5 steps"), ({"epochs": 1}, "4 steps")],  # an epoch has three
    ids=str,
)
def test_a_fit_that_ends_before_the_first_validation(limit: dict[str, int], every: str) -> None:
    with pytest.warns(UserWarning, match=f'nothing will be validated: validate_every="{every}", and the fit ends at'):
        history = made().fit(tiny_loader(), tiny_loader(8), validate_every=every, **limit)  # type: ignore[arg-type]
    assert "val/loss" not in history


def test_a_fit_that_ends_before_its_first_test() -> None:
    with pytest.warns(UserWarning, match='nothing will be tested: validate_every="5 epochs", and the fit ends at 2'):
        made().fit(tiny_loader(), test_loaders=tiny_loader(8), epochs=2, validate_every="5 epochs")


def test_a_fit_that_ends_with_its_only_validation() -> None:
    for limit, every in (({"epochs": 2}, "2 epochs"), ({"steps": 4}, "4 steps"), ({"epochs": 1}, "3 steps")):
        history = made().fit(tiny_loader(), tiny_loader(8), validate_every=every, **limit)  # type: ignore[arg-type]
        assert len(history["val/loss"]) == 1


# Optimizers and schedulers --------------------------------------------------------------------------------------------


def test_a_seed_is_that_of_all_generators() -> None:
    drawn = []
    for seed in (3, 3, 4):
        trainer = made(seed=seed)
        trainer.on("before_epoch")(
            lambda run: drawn.append((random.random(), float(numpy.random.rand()), float(torch.rand(()))))
        )
        trainer.fit(tiny_loader(), epochs=1)
    first, same, other = drawn
    assert first == same
    assert all(one != another for one, another in zip(first, other, strict=True))


def test_the_same_optimizer_twice_would_step_twice() -> None:
    model = tiny_classifier()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="the same SGD stands twice"):
        Trainer(model, [optimizer, optimizer], nn.CrossEntropyLoss(), device="cpu")


def test_a_scheduler_of_another_optimizer_would_change_nothing() -> None:
    model = tiny_classifier()
    own, other = SGD(model.parameters(), lr=0.1), SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="StepLR was made for another optimizer"):
        Trainer(model, own, nn.CrossEntropyLoss(), scheduler=StepLR(other, 1), device="cpu")
    both = ChainedScheduler([StepLR(own, 1), StepLR(own, 2)])
    Trainer(model, own, nn.CrossEntropyLoss(), scheduler=both, device="cpu").fit(tiny_loader(), epochs=1)


class Wrapping(SGD):
    """An optimizer around another one, whose groups it shares."""

    def __init__(self, inner: SGD) -> None:
        super().__init__([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        self.param_groups = inner.param_groups


def test_a_scheduler_of_an_optimizer_that_is_wrapped() -> None:
    model = tiny_classifier()
    inner = SGD(model.parameters(), lr=1.0)
    scheduler = StepLR(inner, 1, 0.5)
    trainer = Trainer(model, Wrapping(inner), nn.CrossEntropyLoss(), scheduler=scheduler, device="cpu")
    assert trainer._training.schedulers == [scheduler]


# Loaders --------------------------------------------------------------------------------------------------------------


def test_a_tensor_would_be_gone_over_row_by_row() -> None:
    trainer, rows = made(), torch.zeros(6, 4)
    for act in (lambda: trainer.predict(rows), lambda: trainer.fit(rows, epochs=1), lambda: trainer.validate(rows)):
        with pytest.raises(TypeError, match=r"not Tensor; one batch alone is given as \[batch\]"):
            act()
    assert trainer.predict([rows]).shape == (6, 3)


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_a_tensor_in_a_look_aside(verb: str) -> None:
    trainer = made()
    trainer.on("after_epoch")(lambda run: getattr(run, verb)(torch.zeros(6, 4)))
    with pytest.raises(TypeError, match="not Tensor"):
        trainer.fit(tiny_loader(), epochs=1)


def test_a_text_and_a_list_of_loaders() -> None:
    several = [tiny_loader(8), tiny_loader(8)]
    with pytest.raises(TypeError, match="train_loader must be a DataLoader or a list of batches, not str"):
        made().fit("digits", epochs=1)
    with pytest.raises(TypeError, match="val_loader is a list of loaders, not of batches; name them in a dict"):
        made().fit(tiny_loader(), several, epochs=1)
    with pytest.raises(TypeError, match="train_loader is a list of loaders, not of batches; give one of them"):
        made().fit(several, epochs=1)


def test_a_data_set_in_place_of_a_loader() -> None:
    with pytest.raises(TypeError, match=r"not TensorDataset; wrap it in a torch\.utils\.data\.DataLoader"):
        made().fit(tiny_data(), epochs=1)
    made().fit(DataLoader(tiny_data(), batch_size=4), epochs=1)


def once() -> Iterator[Any]:
    yield from tiny_loader()


def test_a_generator_has_nothing_for_the_second_epoch() -> None:
    with pytest.raises(ValueError, match="gave no batch: it is a generator, which can be gone over once"):
        made().fit(once(), epochs=2)
    made().fit(once(), epochs=1)


class Look(Callback):
    def after_epoch(self, run: Any) -> None:
        self.seen = run.predict(iter(list(tiny_loader(8))))


def test_an_iterator_is_enough_for_one_look() -> None:
    look = Look()
    made(callbacks=[look]).fit(tiny_loader(), epochs=1)
    assert look.seen.shape == (8, 3)
