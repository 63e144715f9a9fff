"""A run on a device with the scaler of fp16, broken off and resumed, ends with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.callbacks.saving import Break, End, Oops, loader
from torch import nn

from cadenza import Callback, Trainer
from cadenza.callbacks import Checkpoint, Precision
from cadenza.certify.compare import first_difference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def fit(folder: Path, *callbacks: Callback) -> Trainer:
    """The first scale is too large, so that steps are withheld; then it grows again and again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    made: Any = [Checkpoint("1 step", to=folder), Precision("fp16", init_scale=2.0**20, growth_interval=2), *callbacks]
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=made, device="cuda", seed=2)
    trainer.fit(loader(), loader(2), epochs=3, resume="auto")
    return trainer


def test_the_scaler_goes_on_where_it_was(tmp_path: Path) -> None:
    whole, again = End(), End()
    made = fit(tmp_path / "whole", whole)
    assert 0 < made.clock.steps < made.clock.batches, "no step was withheld, so nothing is shown"
    for count in (3, 4):
        with pytest.raises(Oops):
            fit(tmp_path / "killed", Break("after_step", count))
    fit(tmp_path / "killed", again)
    assert first_difference(whole.state, again.state) is None
