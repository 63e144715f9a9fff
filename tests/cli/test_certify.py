"""``cadenza certify`` on a user's own function: what it prints, and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cadenza
from cadenza.cli.main import main

SCRIPT = """
import cadenza, torch
from cadenza.callbacks import Checkpoint
from cadenza.testing import tiny_classifier, tiny_loader

def train(folder, callbacks, loader=None):
    torch.manual_seed(0)
    model = tiny_classifier()
    adam, loss = torch.optim.Adam(model.parameters()), torch.nn.CrossEntropyLoss()
    saving = Checkpoint("1 step", to=folder)
    trainer = cadenza.Trainer(model, adam, loss, callbacks=[saving, *callbacks], device="cpu")
    trainer.fit(loader or tiny_loader(), epochs=2, resume="auto")
    return trainer

def forgetful(folder, callbacks):
    other = folder.joinpath("again").exists()
    folder.joinpath("again").touch()
    batches = [(inputs + other, targets) for inputs, targets in tiny_loader()]
    return train(folder, callbacks, batches)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("training.py").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


def test_a_storm_over_a_function(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "training.py:train", "--storm", "4", "--seed", "2", "--out", "proof.json"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("4 kills (")
    assert printed[0].endswith("s, seed 2")
    assert printed[-2:] == ["equal to the last bit", "proof.json"]
    assert "interrupted trainings completed and compared" in printed[-3]
    proof = json.loads((script / "proof.json").read_text(encoding="utf-8"))
    assert (proof["equal"], sum(proof["struck"].values()), proof["seed"]) == (True, 4, 2)


def test_a_difference_is_named_with_the_kills_before_it(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "training.py:forgetful", "--kills", "1"]) == 1
    said = capsys.readouterr().out
    assert "NOT equal: model/0.weight after batch" in said
    assert "interrupted by SIGKILL" in said


def test_what_changes_a_recipe_does_not_change_a_function(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "training.py:train", "fit.epochs=3"]) == 2
    assert "overrides, --import and --allow change a recipe" in capsys.readouterr().err


LOADER_WORKERS = """
from torch.utils.data import DataLoader
from training import train
from cadenza.testing import tiny_data

def run(folder, callbacks):
    return train(folder, callbacks, DataLoader(tiny_data(), 8, num_workers=1))
"""
COMMAND = "import sys; from cadenza.cli.main import main; sys.exit(main())"


@pytest.mark.long
def test_killed_loader_workers_print_no_warnings(script: Path) -> None:
    (script / "workers.py").write_text(LOADER_WORKERS, encoding="utf-8")
    words = ["certify", "workers.py:run", "--kills", "2", "--seed", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(cadenza.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words], env=environment, capture_output=True, text=True, timeout=500
    )
    assert "equal to the last bit" in done.stdout
    assert done.stderr == ""
