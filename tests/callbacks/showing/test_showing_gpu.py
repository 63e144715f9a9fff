"""On a CUDA device: pictures and matrices are made from what is there; counting and measuring do not wait for it."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from cadenza import Trainer
from cadenza.callbacks.measuring.confusion import ConfusionMatrix, confusion_matrix, count_pairs
from cadenza.callbacks.measuring.gradient_spread import measure_gradients
from cadenza.callbacks.showing.export_check import ExportCheck
from cadenza.callbacks.showing.gradient_plot import GradientPlot
from cadenza.callbacks.showing.history_file import HistoryFile
from cadenza.callbacks.showing.history_plot import HistoryPlot
from cadenza.callbacks.showing.visualize import Visualize
from cadenza.testing import tiny_classifier, tiny_loader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@contextlib.contextmanager
def no_waiting():
    """Whatever waits for the device raises."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("classes", [None, 5])
def test_counting_pairs_waits_for_nothing_and_counts_the_same(classes):
    generator = torch.Generator().manual_seed(0)
    scores, targets = torch.randn(1000, 5, generator=generator), torch.randint(0, 5, (1000,), generator=generator)
    targets[::9] = -100
    there = scores.cuda(), targets.cuda()
    count_pairs(*there, classes)
    with no_waiting():
        counts = count_pairs(*there, classes)
    assert torch.equal(counts.cpu(), count_pairs(scores, targets, classes))


def test_measuring_gradients_waits_for_nothing_and_finds_the_same():
    model = tiny_classifier()
    nn.CrossEntropyLoss()(model(torch.ones(5, 4)), torch.arange(5) % 3).backward()
    here = [one.read() for one in measure_gradients(model.named_parameters())]
    there = tiny_classifier().cuda()
    for mine, other in zip(there.parameters(), model.parameters(), strict=True):
        mine.grad = other.grad.cuda()
    measure_gradients(there.named_parameters())
    with no_waiting():
        measured = measure_gradients(there.named_parameters())
    for one, other in zip((one.read() for one in measured), here, strict=True):
        assert (one.name, one.count, one.zeros, sum(one.bins)) == (other.name, other.count, other.zeros, other.count)
        assert one.quantiles == pytest.approx(other.quantiles, rel=1e-5)


def test_a_fit_with_all_of_them():
    model = tiny_classifier().cuda()
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(),
        callbacks=[
            ConfusionMatrix(),
            GradientPlot(),
            HistoryFile(rows="all"),
            HistoryPlot(),
            Visualize("classification", 3, images=lambda inputs: inputs.reshape(len(inputs), 1, 2, 2)),
            ExportCheck("both", keep=True),
        ],
        device="cuda",
    )
    trainer.fit(tiny_loader(), tiny_loader(20, seed=1), epochs=2)
    inputs, targets = tiny_loader(20, seed=1).dataset.tensors
    with torch.no_grad():
        expected = confusion_matrix(model.eval()(inputs.cuda()).cpu(), targets)
    assert torch.equal(trainer.store["val/confusion_matrix"], expected)
    assert trainer.store["export_check"]["after"].max_abs < 1e-4
    assert sorted(path.name for path in Path("runs").iterdir()) == [
        "confusion-val.png",
        "gradients-000.png",
        "gradients-001.png",
        "history.csv",
        "history.png",
        "model.onnx",
        "predictions-val-000.png",
        "predictions-val-001.png",
    ]
