"""``cadenza script``."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.cli.main import main

SCRIPT = """
import sys
from fastai.callback import Callback

print(Callback.__module__, sys.argv[1:])
"""


def test_a_script_runs_with_its_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    assert main(["script", "--dialect", "fastai", str(file), "data", "--", "--epochs", "2"]) == 0
    assert capsys.readouterr().out == "cadenza.dialects.fastai.callback ['data', '--epochs', '2']\n"


def test_wrong_usage_of_script_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text("raise ZeroDivisionError('mine')")
    assert main(["script", str(file)]) == 2
    said = capsys.readouterr().err
    assert "say which system the script was written for: cadenza script --dialect orca" in said
    assert str(file) in said
    assert main(["script", "--dialect", "orca", str(tmp_path / "missing.py")]) == 1
    assert "there is no script" in capsys.readouterr().err
    assert main(["script", "--dialect", "orca", str(file)]) == 1
    assert "ZeroDivisionError: mine" in capsys.readouterr().err
