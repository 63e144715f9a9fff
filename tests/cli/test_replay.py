"""``cadenza replay`` as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.cli.main import main

from ..processes import run

pytestmark = pytest.mark.filterwarnings("ignore:.*The run is stopped:UserWarning")

SCRIPT = """
import torch
from torch import nn

from cadenza import Trainer
from cadenza.callbacks import NaNGuard
from cadenza.testing import tiny_data


class Root(nn.Module):
    def forward(self, x):
        return x.sqrt()


def make_trainer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Root(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(), callbacks=[NaNGuard(folder="nan")], device="cpu")


if __name__ == "__main__":
    make_trainer().fit([tiny_data(12).tensors], epochs=1)
"""


@pytest.fixture(scope="module")
def hit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A script whose training met a NaN, and the file that was written of it."""
    folder = tmp_path_factory.mktemp("hit")
    script = folder / "mine.py"
    script.write_text(SCRIPT)
    run(script, cwd=folder).check_returncode()
    (file,) = (folder / "nan").iterdir()
    return script, file


def test_it_names_the_module(hit: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    script, file = hit
    assert main(["replay", str(file), "--trainer", f"{script}:make_trainer"]) == 0
    assert "the output of 1, a Root" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "place", "says", "code"),
    [
        ("no.pt", "{script}:make_trainer", "there is no file", 1),
        ("{file}", "{script}", "file.py:function or module:function", 2),
        ("{file}", "{script}:no_such", "has no function 'no_such'", 1),
        ("{file}", "no_such_module:f", "there is no module 'no_such_module'", 1),
        ("{script}", "{script}:make_trainer", "not a replay file", 1),
    ],
)
def test_what_is_wrong_is_one_line(
    file: str, place: str, says: str, code: int, hit: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"script": str(hit[0]), "file": str(hit[1])}
    assert main(["replay", file.format(**names), "--trainer", place.format(**names)]) == code
    told = capsys.readouterr().err
    assert told.startswith("cadenza: ")
    assert says in told
    assert told.count("\n") == 1
