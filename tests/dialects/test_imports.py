"""Original import paths that lead to a dialect."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cadenza.dialects import NAMES, dialect, install, installed, run_script, uninstall


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    before = (sys.meta_path[:], sys.path[:], sys.argv[:], set(sys.modules))
    yield
    assert (sys.meta_path, sys.path, sys.argv) == before[:3]
    tops = {path.split(".")[0] for name in NAMES for path in dialect(name).modules}
    assert not {name for name in set(sys.modules) - before[3] if name.split(".")[0] in tops}


@pytest.mark.parametrize("name", NAMES)
def test_every_path_of_a_dialect_can_be_imported(name: str) -> None:
    with installed(name):
        for path in dialect(name).modules:
            module = importlib.import_module(path)
            assert module.__all__
            assert "as Cadenza's dialect" in str(module.__doc__)
    path = next(iter(dialect(name).modules))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(path)


def test_installing_twice_is_once() -> None:
    install("orca")
    install("orca")
    uninstall("orca")
    with pytest.raises(ValueError, match="'orca' is not installed"):
        uninstall("orca")


def test_names_and_modules_that_are_not_carried_are_refused_with_the_nearest() -> None:
    with installed("orca"):
        with pytest.raises(
            ImportError, match="orca: there is no name 'MainCalback' here; the nearest is 'MainCallback'"
        ):
            importlib.import_module("bigdl.orca.learn.pytorch.callbacks").MainCalback
        with pytest.raises(
            ModuleNotFoundError, match=r"orca: there is no module 'bigdl\.orca\.lern' here; the nearest"
        ):
            importlib.import_module("bigdl.orca.lern")
        with pytest.raises(ModuleNotFoundError, match=r"orca: bigdl\.orca\.data is not carried: data is given"):
            importlib.import_module("bigdl.orca.data")
        assert not hasattr(importlib.import_module("bigdl"), "__file__")


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no dialect 'orka'; did you mean 'orca'"):
        install("orka")
    with pytest.raises(ValueError, match="say which dialect"):
        install()


def test_it_is_refused_when_the_real_package_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "bigdl" / "orca"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ImportError, match=r"bigdl\.orca is installed here.*change the imports to cadenza\.dialects\.orca"
    ):
        install("orca")
    monkeypatch.undo()


def test_a_package_beside_it_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bigdl" / "llm").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    install("orca")
    assert importlib.import_module("bigdl.orca.learn.pytorch").__name__ == "bigdl.orca.learn.pytorch"
    uninstall("orca")
    del sys.modules["bigdl"]  # the real one, which lies beside
    monkeypatch.undo()


SCRIPT = """
import sys
from bigdl.orca import init_orca_context, stop_orca_context
from bigdl.orca.learn.pytorch import Estimator
from bigdl.orca.learn.pytorch.callbacks.base import Callback
from helper import size

assert __name__ == "__main__"
arguments = sys.argv[1:]
names = (Estimator.__module__, Callback.__module__, size)
"""


def test_a_script_runs_without_a_change(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("size = 3\n")
    found = run_script("orca", tmp_path / "train.py", ["--epochs", "2"])
    sys.modules.pop("helper")
    assert found["arguments"] == ["--epochs", "2"]
    assert found["names"] == ("cadenza.dialects.orca.estimator", "cadenza.dialects.orca.callback", 3)
    with pytest.raises(FileNotFoundError, match="there is no script"):
        run_script("orca", tmp_path / "missing.py")
