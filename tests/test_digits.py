"""The first example: what it prints, what it leaves, and how good it gets."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


def train(folder: Path, *options: str) -> str:
    """Runs the example in ``folder`` and returns what it printed."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "00_digits.py"), *options]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_short_run_prints_and_leaves_the_same_results(tmp_path):
    printed = train(tmp_path, "--epochs", "2", "--out", "short").splitlines()
    history = rows(tmp_path / "short" / "history.csv")

    assert [line.split("  ")[0] for line in printed[:2]] == ["epoch 1/2", "epoch 2/2"]
    for line, row in zip(printed[:2], history, strict=True):
        shown = dict(re.findall(r"(\S+/\S+) (\S+)", line.split("  ", 1)[1]))
        assert list(shown) == ["train/loss", "val/loss", "val/accuracy"]
        assert all(float(value) == pytest.approx(float(row[name]), rel=1e-3) for name, value in shown.items())

    accuracy = re.fullmatch(r"validation accuracy (\d+\.\d\d)% after \d+\.\d s of training", printed[2])
    assert accuracy is not None
    assert float(accuracy[1]) / 100 == pytest.approx(float(history[-1]["val/accuracy"]), abs=1e-4)
    assert float(accuracy[1]) > 90
    assert printed[3:] == ["results: short/history.csv and short/weights.pt"]
    assert (history[-1]["epoch"], history[-1]["step"]) == ("1", "90")

    weights = torch.load(tmp_path / "short" / "weights.pt", weights_only=True)
    assert weights["0.weight"].shape == (32, 1, 3, 3)
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_a_full_run_reads_at_least_97_percent_and_repeats_itself(tmp_path):
    printed = [train(tmp_path).splitlines()[-2:] for _ in range(2)]
    found = [
        re.fullmatch(r"validation accuracy (\d+\.\d\d)% after (\d+\.\d) s of training", lines[0]) for lines in printed
    ]
    accuracies = [float(match[1]) for match in found]
    assert accuracies[0] >= 97
    assert accuracies[0] == accuracies[1]
    assert printed[0][1] == "results: runs/digits/history.csv and runs/digits/weights.pt"
    assert len(rows(tmp_path / "runs" / "digits" / "history.csv")) == 20
