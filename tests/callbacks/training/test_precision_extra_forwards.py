"""Forwards beside the training, for statistics or an evaluation, have the precision of the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cadenza import Callback, Run, Trainer
from cadenza.callbacks import PreciseBatchNorm, Precision, WeightAverage
from cadenza.testing import tiny_loader


class Noting(nn.Module):
    """Notes the type of what its linear layer puts out, and whether it was training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.head = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.seen: list[tuple[bool, bool, torch.dtype]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.linear(inputs)
        self.seen.append((self.training, torch.is_grad_enabled(), hidden.dtype))
        output: Tensor = self.head(self.norm(hidden))
        return output


def trained(*callbacks: Callback, epochs: int = 1) -> Noting:
    torch.manual_seed(0)
    model = Noting()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, sgd, nn.CrossEntropyLoss(), callbacks=callbacks, device="cpu")
    trainer.fit(tiny_loader(), tiny_loader(8), epochs=epochs)
    return model


EXTRA = {"statistics": lambda: PreciseBatchNorm(2), "average": lambda: WeightAverage(batches=2)}
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("extra", EXTRA)
def test_statistics_are_those_of_forwards_as_in_training(extra: str, precision: str) -> None:
    seen = trained(Precision(precision), EXTRA[extra]()).seen
    beside = [dtype for training, grad, dtype in seen if training and not grad]
    assert beside == [DTYPES[precision]] * 2
    assert {dtype for _, _, dtype in seen} == {DTYPES[precision]}


def test_without_precision_they_are_as_the_user_left_them() -> None:
    assert {dtype for _, _, dtype in trained(PreciseBatchNorm(2)).seen} == {torch.float32}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert {dtype for _, _, dtype in trained(PreciseBatchNorm(2)).seen} == {torch.bfloat16}


class Nested(Callback):
    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def after_epoch(self, run: Run) -> None:
        loader = tiny_loader(8)
        self.found = {"predicted": run.predict(loader).dtype, "loss": run.evaluate(loader)["loss"]}
        self.found["usual"] = run.metrics["val/loss"]


@pytest.mark.parametrize("precision", DTYPES)
def test_a_nested_pass_measures_what_a_validation_does(precision: str) -> None:
    nested = Nested()
    assert {dtype for _, _, dtype in trained(Precision(precision), nested).seen} == {DTYPES[precision]}
    assert nested.found["predicted"] == DTYPES[precision]
    assert nested.found["loss"] == nested.found["usual"]
