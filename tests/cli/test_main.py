from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

import cadenza
from cadenza.cli.commands.points import points_text
from cadenza.cli.main import main

RIGHT = "from cadenza import Callback\nclass Mine(Callback):\n    def after_epoch(self, run): ...\n"
WRONG = "from cadenza import Callback\nclass Mine(Callback):\n    def after_epoch(self): ...\n"


@pytest.fixture
def right(tmp_path: Path) -> Path:
    (tmp_path / "right.py").write_text(RIGHT)
    return tmp_path / "right.py"


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    (tmp_path / "wrong.py").write_text(WRONG)
    return tmp_path / "wrong.py"


def test_points_prints_the_score(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["points"]) == 0
    assert capsys.readouterr().out == points_text() + "\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("command", ["points", "recipes"])
def test_lists_are_folded_in_a_terminal_and_whole_elsewhere(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command]) == 0
    whole = capsys.readouterr().out
    assert max(map(len, whole.splitlines())) > 80
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert main([command]) == 0
    shown = terminal.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.split() == whole.split()  # not a word is missing


def test_version_prints_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"cadenza {cadenza.__version__}\n"


def test_a_right_file_ends_with_0(right: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(right)]) == 0
    assert capsys.readouterr().out == "nothing found\n"


def test_a_wrong_file_ends_with_1_and_says_where(right: Path, wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(right), str(wrong)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{wrong}:3:5: Mine.after_epoch(self) must be callable with the run alone")
    assert lines[1:] == ["1 found"]


def test_what_is_no_python_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    assert main(["check", str(tmp_path / "broken.py")]) == 1
    assert "broken.py:1:7: this is not Python" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [None, b"# coding: no-such-encoding\n", b"x = '\xff\xfe'\n"], ids=["none", "odd", "bytes"]
)
def test_an_unreadable_file_ends_with_2_after_the_others(
    content: bytes | None, wrong: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "unreadable.py"
    if content is not None:
        path.write_bytes(content)
    assert main(["check", str(path), str(wrong)]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"cadenza check: {path}: ")
    assert told.out.endswith("1 found\n")


def test_a_folder_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"cadenza check: {tmp_path}: ")


def test_a_file_is_read_in_its_own_encoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes(b"# coding: latin-1\n" + WRONG.replace("Mine", "Größe").encode("latin-1"))
    assert main(["check", str(path)]) == 1
    assert "Größe.after_epoch(self)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [[], ["check"], ["chek", "x.py"], ["check", "--fix", "x.py"], ["train"], ["ablate", "x", "--seeds", "0"]],
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Usage: cadenza" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing command. `cadenza --help` lists them all"),
        (["chek"], "`cadenza --help` lists them all"),
        (["train", "digits", "--epochs", "3"], "--epochs; a recipe is changed by key=value, such as fit.epochs=3"),
        (["points", "--epochs"], "--epochs"),
    ],
)
def test_wrong_usage_is_told_what_is_right(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.endswith(f"{said}\n")


def test_a_script_without_a_dialect_is_told_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["script", "old.py"]) == 2
    said = capsys.readouterr().err
    assert "cadenza script --dialect orca old.py (the dialects are orca, aitoolbox, supergradients, fastai)" in said
    assert "is run by python old.py" in said


def test_the_module_is_a_command(wrong: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cadenza.cli.main", "check", str(wrong)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.endswith("1 found\n")
