"""Load: the weights a training begins with, what is refused, and that a training that goes on keeps its own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cadenza import Trainer
from cadenza.callbacks import EMA, Load
from cadenza.checkpoint import Shelf, save_weights
from cadenza.testing import tiny_classifier, tiny_loader


def trainer_of(model: nn.Module, *callbacks: Any) -> Trainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu", seed=3)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in model.state_dict().values()]


def equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.fixture
def old() -> nn.Module:
    return tiny_classifier(seed=1)


def sources(old: nn.Module, folder: Path) -> dict[str, Any]:
    save_weights(folder / "old.safetensors", old)
    shelf = Shelf(folder / "run")
    name = shelf.write("v1", {"model": old.state_dict()})
    return {
        "file": folder / "old.safetensors",
        "shelf as path": str(folder / "run"),
        "checkpoint as path": folder / "run" / name,
        "shelf": shelf,
        "saved": shelf.read(),
        "dict": old.state_dict(),
    }


@pytest.mark.parametrize("kind", ["file", "shelf as path", "checkpoint as path", "shelf", "saved", "dict"])
def test_a_training_begins_with_these_weights(old: nn.Module, tmp_path: Path, kind: str) -> None:
    started = tiny_classifier(seed=1)
    loaded = tiny_classifier(seed=2)
    trainer_of(started).fit(tiny_loader(), epochs=1)
    trainer_of(loaded, Load(sources(old, tmp_path)[kind])).fit(tiny_loader(), epochs=1)
    assert equal(weights(loaded), weights(started))


def test_a_second_fit_keeps_what_was_trained(old: nn.Module) -> None:
    model, plain = tiny_classifier(seed=2), tiny_classifier(seed=1)
    trainer, other = trainer_of(model, Load(old.state_dict())), trainer_of(plain)
    for _ in range(2):
        trainer.fit(tiny_loader(), epochs=1)
        other.fit(tiny_loader(), epochs=1)
    assert equal(weights(model), weights(plain))


def test_an_average_begins_with_them_too(old: nn.Module) -> None:
    model, ema = tiny_classifier(seed=2), EMA(0.999999)
    trainer_of(model, ema, Load(old.state_dict())).fit(tiny_loader(), epochs=1)
    ema.copy_to(model)
    assert torch.allclose(model[0].weight, old[0].weight, atol=1e-4)


def test_what_does_not_fit_is_refused_or_reported(old: nn.Module, caplog: Any) -> None:
    model = tiny_classifier(classes=5, seed=2)
    before = weights(model)
    with pytest.raises(ValueError, match=r"(?s)nothing was changed.*2\.weight is \[3, 8\], in the module \[5, 8\]"):
        trainer_of(model, Load(old.state_dict())).fit(tiny_loader(), epochs=1)
    assert equal(weights(model), before)
    load = Load(old.state_dict(), strict=False)
    with caplog.at_level(logging.INFO, "cadenza"):
        trainer_of(model, load).validate(tiny_loader())
    assert load.report is not None
    assert load.report.loaded == ["0.weight", "0.bias"]
    assert "of another shape" in caplog.text
    assert torch.equal(model[0].weight, old[0].weight)
    assert torch.equal(model[2].weight, before[2])


def test_parts_are_moved_by_their_prefix(old: nn.Module) -> None:
    model = nn.Sequential(tiny_classifier(seed=2), nn.Linear(3, 3))
    trainer_of(model, Load(old.state_dict(), prefix={"": "0."})).validate(tiny_loader())
    assert equal(weights(model[0]), weights(old))


def test_what_is_no_source_is_refused() -> None:
    with pytest.raises(TypeError, match="source is a path, a checkpoint"):
        Load(7)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no file"):
        trainer_of(tiny_classifier(), Load("nowhere.safetensors")).fit(tiny_loader(), epochs=1)
