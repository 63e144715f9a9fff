"""Original import paths that lead to a dialect."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadenza.dialects import NAMES, dialect, install, installed, run_script, uninstall
from cadenza.distributed.launchers import local


def ours() -> list[Any]:
    """Finders of this package; star imports of a dialect may import packages that add their own."""
    return [one for one in sys.meta_path if type(one).__module__.startswith("cadenza")]


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    before = (ours(), sys.path[:], sys.argv[:], set(sys.modules))
    yield
    assert (ours(), sys.path, sys.argv) == before[:3]
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
            AttributeError, match="orca: there is no name 'MainCalback' here; the nearest is 'MainCallback'"
        ):
            importlib.import_module("bigdl.orca.learn.pytorch.callbacks").MainCalback
        with pytest.raises(
            ModuleNotFoundError, match=r"orca: there is no module 'bigdl\.orca\.lern' here; the nearest"
        ):
            importlib.import_module("bigdl.orca.lern")
        with pytest.raises(ModuleNotFoundError, match=r"orca: bigdl\.orca\.data is not carried: data is given"):
            importlib.import_module("bigdl.orca.data.pandas")
        with pytest.raises(AttributeError, match=r"orca: bigdl\.orca\.data is not carried: data is given"):
            importlib.import_module("bigdl.orca.data").SparkXShards
        assert not hasattr(importlib.import_module("bigdl"), "__file__")
    with installed("supergradients"):
        with pytest.raises(AttributeError, match=r"no Metric called 'ACURACY'\. There are: Accuracy, Top5"):
            importlib.import_module("super_gradients.common.object_names").Metrics.ACURACY
        with pytest.raises(AttributeError, match="training_hyperparams is not carried: recipes of the zoo"):
            importlib.import_module("super_gradients.training").training_hyperparams


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
    assert "bigdl" not in sys.modules
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


def test_the_helper_modules_that_users_of_orca_import(tmp_path: Path) -> None:
    with installed("orca"):
        files = importlib.import_module("bigdl.orca.data.file")
        is_local_path = importlib.import_module("bigdl.dllib.utils.file_utils").is_local_path
        checks = importlib.import_module("bigdl.dllib.utils.log4Error")
        measures = importlib.import_module("bigdl.orca.learn.pytorch.pytorch_metrics")
        for name in ("trigger", "optimizers", "tf2.estimator"):
            with pytest.raises(ModuleNotFoundError, match=r"orca: bigdl\.orca\.learn\.\w+ is not carried"):
                importlib.import_module(f"bigdl.orca.learn.{name}")
    assert is_local_path("runs/config.json")
    assert not is_local_path("hdfs://host/config.json")
    (tmp_path / "here").write_text("text")
    files.put_local_file_to_remote(str(tmp_path / "here"), f"file://{tmp_path}/there")
    files.get_remote_file_to_local(f"file://{tmp_path}/there", str(tmp_path / "again"))
    assert (tmp_path / "again").read_text() == "text"
    files.makedirs(str(tmp_path / "new" / "inner"))
    assert files.listdir(str(tmp_path)) == ["again", "here", "new", "there"]
    for place, there, is_file in (("new", True, False), ("here", True, True), ("missing", False, False)):
        for path in (str(tmp_path / place), f"file://{tmp_path}/{place}"):
            assert (files.exists(path), files.is_file(path)) == (there, is_file)
    with pytest.raises(RuntimeError, match="no"):
        checks.invalidInputError(False, "no")
    assert measures.AUROC().get_name() == "AUC"


def test_a_launch_hands_the_dialect_to_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_callbacks.py").write_text(
        "from bigdl.orca.learn.pytorch.callbacks import Callback\n\n\nclass Mine(Callback):\n    answer = 3\n"
    )
    with monkeypatch.context() as patch, installed("orca"):
        patch.syspath_prepend(str(tmp_path))
        mine = importlib.import_module("users_callbacks").Mine()
        assert local.start(getattr, (mine, "answer"), 1) == 3
    del sys.modules["users_callbacks"]
