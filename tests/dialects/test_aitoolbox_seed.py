"""The document of AIToolbox: its code runs as it stands, and does what the text says."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cadenza.dialects import aitoolbox, installed
from cadenza.dialects.aitoolbox.table import HOOKS

from .aitoolbox_names import NAMES, CNNModel
from .documents import Repair, repaired, text_of, under_directives

SEED = "aitoolbox-callbacks.txt"
BASIC, CUSTOM, FIRST_GPU = under_directives(SEED)
REPAIRS = [
    Repair(
        "..... Some logic .....",
        "played.append(self.train_loop_obj.ddp_rank)",
        "the document writes dots where the reader's own code goes",
    )
]


@pytest.fixture(autouse=True)
def original_paths() -> Iterator[None]:
    with installed("aitoolbox"):
        yield


def executed(code: str) -> dict[str, Any]:
    torch.manual_seed(0)
    names = {**NAMES, "__name__": "example"}
    exec(compile(code, SEED, "exec"), names)
    return names


def test_the_example_of_basic_callbacks() -> None:
    names = executed(BASIC)
    assert isinstance(names["model"], CNNModel)
    history = names["tl"].train_history
    assert len(history["val_loss"]) == names["tl"].epoch + 1 <= 10
    assert history["loss"][-1] < history["loss"][0]
    assert [type(one).__name__ for one in names["tl"].callbacks] == [
        "AllPredictionsSame",
        "TerminateOnNaN",
        "EarlyStopping",
    ]


def test_the_example_of_a_custom_callback(capsys: pytest.CaptureFixture[str]) -> None:
    names = executed(CUSTOM)
    loop, lines = names["tl"], capsys.readouterr().out.splitlines()
    assert lines[0] == f"Starting the training! Experiment started at: {loop.experiment_timestamp}"
    started = [line for line in lines if line.startswith("Starting new epoch num")]
    assert started == [f"Starting new epoch num {epoch}" for epoch in range(loop.epoch + 1)]
    assert f"End of training! Stopped at epoch {loop.epoch}" in lines
    assert lines.count("Model predictions:") == loop.epoch + 2
    predictions, targets, _ = loop.predict_on_test_set()
    assert predictions.shape == targets.shape == (24,)


def test_the_example_of_the_first_device() -> None:
    played: list[None] = []
    code = repaired(FIRST_GPU, *REPAIRS)
    names = {**NAMES, "played": played, "__name__": "example"}
    exec(compile(code, SEED, "exec"), names)
    callback = names["DemoFirstGPUCallback"]()
    model = CNNModel()
    loader = NAMES["DataLoader"](...)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = aitoolbox.TrainLoop(model, loader, None, None, optimizer, torch.nn.NLLLoss())
    loop.fit(num_epochs=1, callbacks=[callback])
    assert played == [None]
    assert [one.ranks for one in loop._trainer.callbacks if getattr(one, "foreign", None) is callback] == [{0}]


def test_the_modules_that_the_document_lists_are_there() -> None:
    text = text_of(SEED)
    modules = re.findall(r"^\* :mod:`([\w.]+)`", text, flags=re.MULTILINE)
    assert len(modules) == 7
    for name in modules:
        assert importlib.import_module(name).__all__


def test_the_hooks_that_the_document_lists_are_carried_in_that_order() -> None:
    text = text_of(SEED)
    listed = re.findall(r"^\* :meth:`aitoolbox[\w.]+AbstractCallback\.(\w+)`", text, flags=re.MULTILINE)
    assert len(listed) == 10
    ours = [row.name for row in HOOKS]
    assert set(listed) <= set(ours)
    of_training = [
        name for name in ours if name in listed and "registration" not in name and "multiprocess" not in name
    ]
    assert of_training == listed[:8]


def test_the_links_of_the_document_lead_somewhere() -> None:
    text = text_of(SEED)
    for path in sorted(set(re.findall(r":(?:class|meth|attr):`(aitoolbox[\w.]+)`", text))):
        module, rest = re.fullmatch(r"((?:[a-z_]+\.)*[a-z_]+)\.([A-Z].*)", path).groups()  # type: ignore[union-attr]
        found: Any = importlib.import_module(module)
        for name in rest.split("."):
            found = getattr(found("x") if isinstance(found, type) and name == "train_loop_obj" else found, name)
        assert callable(found) or path.endswith("train_loop_obj"), path
