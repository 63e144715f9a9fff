"""What ``make`` installs and when, and that what the Makefile and the tools name exists."""

from __future__ import annotations

import ast
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import mutate  # noqa: E402

UV = """#!{python}
import pathlib, sys
words = sys.argv[1:]
with open({log!r}, "a") as file:
    print(*words, file=file)
if words[0] == "venv":
    python = pathlib.Path(words[-1], "bin/python")
    python.parent.mkdir(parents=True, exist_ok=True)
    python.unlink(missing_ok=True)
    python.write_text("#!/bin/sh\\nexec {python} \\"$@\\"\\n")
    python.chmod(0o755)
"""
"""Stands for uv: notes what it is called with, and makes a folder that starts this Python."""
OLD = """#!/bin/sh
exec {python} -c "import sys; sys.version_info = (3, 8); exec(sys.argv[1])" "$2"
"""
BACKEND = """
import zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{folder}/cadenza-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("cadenza-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: cadenza\\nVersion: 1\\n")
        wheel.writestr("cadenza-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("cadenza-1.dist-info/RECORD", "")
    return "cadenza-1-py3-none-any.whl"
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


class Clone:
    """A project with our Makefile and installer, whose packages need no network."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder / "clone", folder / "uv.txt"
        for name in ("Makefile", "tools/install.py"):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.folder / name)
        (self.folder / "examples").mkdir()
        (self.folder / "examples/00_digits.py").write_text("print('trained')")
        (self.folder / "pyproject.toml").write_text(PROJECT)
        (self.folder / "backend.py").write_text(BACKEND)
        (self.folder / "constraints.txt").touch()
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.program("uv", UV)
        self.old = self.program("old", OLD)

    def program(self, name: str, text: str) -> Path:
        file = self.programs / name
        file.write_text(text.format(python=sys.executable, log=str(self.log)))
        file.chmod(0o755)
        return file

    def make(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        left_out = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHONPATH", "VIRTUAL_ENV"}
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        command = ["make", "--no-print-directory", f"PYTHON={sys.executable}", *words]
        where = {"cwd": self.folder, "env": {**kept, "PATH": path, **variables}, "stdin": subprocess.DEVNULL}
        return subprocess.run(command, capture_output=True, text=True, **where)  # type: ignore[call-overload,no-any-return]

    def installed(self) -> list[list[str]]:
        """What uv was called with since the last time, a list of words for each call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.split() for line in lines]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


# What is installed ----------------------------------------------------------------------------------------------------


def test_train_installs_its_own_packages_once(clone: Clone) -> None:
    first = clone.make("train")
    assert first.returncode == 0, first.stderr
    assert "installing what `examples` needs into .venv with uv" in first.stdout
    assert first.stdout.endswith("trained\n")
    venv, install = clone.installed()
    assert venv[0] == "venv"
    assert venv[-1] == ".venv"
    assert install[install.index("--python") + 1] == ".venv/bin/python"
    assert install[-2:] == ["--editable", ".[examples]"]
    assert clone.make("train").stdout.endswith("trained\n")
    assert clone.installed() == []


def test_test_adds_the_rest_and_train_needs_no_more_then(clone: Clone) -> None:
    clone.make("train")
    clone.installed()
    assert clone.make(".venv/.test").returncode == 0
    [install] = clone.installed()
    assert install[-4:] == ["--editable", ".", "--group", "test"]
    clone.make("train", ".venv/.test")
    assert clone.installed() == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_other_versions_are_installed_into_the_same_environment(clone: Clone, name: str) -> None:
    clone.make("train")
    clone.installed()
    stamp = clone.folder / ".venv/.examples"
    os.utime(clone.folder / name, (stamp.stat().st_mtime + 1,) * 2)
    clone.make("train")
    assert [words[:2] for words in clone.installed()] == [["pip", "install"]]


def test_pip_installs_into_this_environment_alone(clone: Clone, tmp_path: Path) -> None:
    """uv fails here, so pip does it, while another environment is active; first it fails too, and is tried again."""
    clone.program("uv", "#!/bin/sh\nexit 1\n")
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    before = sorted(other.rglob("*"))
    path = f"{clone.programs}{os.pathsep}{other / 'bin'}{os.pathsep}{os.environ['PATH']}"
    active = {"VIRTUAL_ENV": str(other), "PATH": path, "PIP_NO_INDEX": "1"}
    (clone.folder / "pyproject.toml").write_text("[")
    failed = clone.make("train", "PYTHON=python3", **active)
    assert failed.returncode != 0
    assert "failed: .venv/bin/python -m pip install" in failed.stderr
    (clone.folder / "pyproject.toml").write_text(PROJECT)
    done = clone.make("train", "PYTHON=python3", **active)
    assert done.returncode == 0, done.stderr
    assert "with pip" in done.stdout
    assert done.stdout.endswith("trained\n")
    assert sorted(other.rglob("*")) == before
    assert list((clone.folder / ".venv").rglob("cadenza-1.dist-info"))


# A wrong Python -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["no-such-python", "old", ""])
@pytest.mark.parametrize("target", ["train", "lint"])
def test_a_wrong_python_is_named_in_one_sentence(clone: Clone, which: str, target: str) -> None:
    refused = clone.make(target, f"PYTHON={which}")
    assert refused.returncode != 0
    said = [line for line in refused.stderr.splitlines() if not line.startswith("make:")]
    advice = "is not Python 3.11 or newer, which Cadenza needs; name one: make train PYTHON=python3.12"
    assert said == [f"{which or 'nothing'} {advice}"]
    assert not (clone.folder / ".venv").exists()


@pytest.mark.parametrize("text", [OLD, None], ids=["too old", "gone"])
def test_an_environment_whose_python_does_not_do_is_made_again(clone: Clone, text: str | None) -> None:
    clone.make("train")
    clone.installed()
    python = clone.folder / ".venv/bin/python"
    (clone.folder / ".venv/pyvenv.cfg").touch()
    (clone.folder / ".venv/.examples").unlink()
    python.unlink()
    if text is None:
        python.symlink_to("/no/such/python")
    else:
        shutil.copy(clone.old, python)
    assert clone.make("train").stdout.endswith("trained\n")
    assert clone.installed()[0][-2:] == ["--clear", ".venv"]


def test_a_folder_that_is_no_environment_is_not_cleared(clone: Clone) -> None:
    (clone.folder / "mine").mkdir()
    clone.make("train", "VENV=mine")
    assert "--clear" not in clone.installed()[0]


# What the Makefile and the tools name ---------------------------------------------------------------------------------


def test_the_quick_tests_exist() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    quick = re.search(r"^QUICK := (.*)$", text, re.MULTILINE)
    assert quick is not None
    paths = [word for word in quick[1].split() if not word.startswith("--")]
    assert paths
    assert [word for word in paths if not (ROOT / word.split("::")[0]).exists()] == []


def test_mutants_are_drawn_from_modules_and_folders_that_exist() -> None:
    drawn = random.Random(17).sample(mutate.mutants(), 160)  # fails for a pattern without a module
    for mutant in drawn:
        ast.parse(mutate.changed((ROOT / mutant.file).read_text(encoding="utf-8"), mutant))
    for area, (_, folders) in mutate.AREAS.items():
        for folder in folders.split():
            assert mutate.tests_of(area, [folder]), folder
