"""Names, the last and the best, what is kept, checkpoints in parts, and a folder that moves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from tests.checkpoint.states import difference, small_state, value_of

from cadenza.checkpoint import NoCheckpoint, NotState, Shelf
from cadenza.checkpoint.retention import ranked, surplus


def loss(value: float, **others: Any) -> dict[str, Any]:
    return {"monitor": "val/loss", "mode": "min", "value": value, **others}


@pytest.fixture(params=["disk", "memory", "store with folders"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "disk":
        yield Shelf(tmp_path / "deep" / "shelf")
    elif request.param == "store with folders":  # as sftp:// or hdfs:// have
        yield Shelf(str(tmp_path / "deep" / "shelf"), filesystem=fsspec.filesystem("file"))
    else:
        made = Shelf(f"memory://shelf/{tmp_path.name}/")
        yield made
        made.store.filesystem.store.clear()  # type: ignore[attr-defined]


def test_last_and_best_are_found(shelf: Shelf) -> None:
    for value, measured in ((1.0, 0.3), (2.0, 0.1), (3.0, 0.2)):
        name = shelf.write(f"v{value:g}", small_state(value), loss(measured, epoch=int(value)))
        assert name == f"00000{value:g}-v{value:g}"
    assert shelf.names() == ["000001-v1", "000002-v2", "000003-v3"]
    assert value_of(shelf.read().state) == value_of(shelf.read("last").state) == 3.0
    assert value_of(shelf.read("best").state) == 2.0
    assert shelf.best() == "000002-v2"
    assert value_of(shelf.read("v1").state) == value_of(shelf.read("000001-v1").state) == 1.0
    assert shelf.read("best").meta == loss(0.1, epoch=2)
    with pytest.raises(NoCheckpoint, match=r"no checkpoint '000001-v4' in .*; did you mean '000001-v1'\?"):
        shelf.read("000001-v4")
    shelf.verify("v1")


def test_the_same_name_again_does_not_touch_the_first(shelf: Shelf) -> None:
    shelf.write("same", small_state(1.0))
    shelf.write("same", small_state(2.0))
    assert shelf.names() == ["000001-same", "000002-same"]
    assert value_of(shelf.read("same").state) == 2.0
    assert value_of(shelf.read("000001-same").state) == 1.0


def test_without_a_measure_there_is_no_best(shelf: Shelf) -> None:
    shelf.write("v1", small_state(1.0), loss(float("nan")))
    assert shelf.best() is None
    with pytest.raises(NoCheckpoint, match="none is the best"):
        shelf.read("best")


def test_what_is_kept(shelf: Shelf) -> None:
    for value, measured in ((1.0, 0.1), (2.0, 0.3), (3.0, 0.2), (4.0, 0.5), (5.0, 0.4)):
        shelf.write(f"v{value:g}", small_state(value), loss(measured))
    assert shelf.retain() == []
    assert shelf.retain(keep_last=2, keep_best=2) == ["000002-v2"]
    assert shelf.names() == ["000001-v1", "000003-v3", "000004-v4", "000005-v5"]
    assert shelf.retain(keep_last=1) == ["000001-v1", "000003-v3", "000004-v4"]
    assert [value_of(shelf.read(name).state) for name in shelf.names()] == [5.0]
    assert shelf.write("v6", small_state(6.0)) == "000006-v6"


def test_drafts_that_are_left_over_go_when_a_newer_one_is_committed(shelf: Shelf) -> None:
    shelf.draft("torn").store.write("000001-torn", "state.json", [b"{"])
    assert shelf.retain(keep_last=1) == []
    assert shelf.torn() == ["000001-torn"]
    shelf.write("v1", small_state(1.0))
    going_on = shelf.draft("goes-on")
    going_on.store.write(going_on.folder, "state.json", [b"{"])
    assert shelf.retain(keep_last=1) == []
    assert shelf.torn() == [going_on.folder], "a save that goes on is not disturbed"


MANY = {"a": 0.5, "b": 0.5, "c": 0.1, "d": float("nan"), "e": float("inf")}


def test_equal_ones_rank_by_age_and_nan_not_at_all() -> None:
    metas = {name: loss(value) for name, value in MANY.items()}
    assert ranked(metas) == ["c", "b", "a", "e"]
    assert ranked({name: {**meta, "mode": "max"} for name, meta in metas.items()}) == ["e", "b", "a", "c"]
    assert ranked({**metas, "f": {"value": 1.0, "mode": "max", "monitor": "val/accuracy"}}) == ["f"]
    assert (
        ranked({**metas, "f": {}, "g": {"value": True, "mode": "min"}, "h": {"value": "0.1", "mode": "min"}})[0] == "c"
    )
    assert surplus(metas, keep_last=1, keep_best=2) == ["a", "d"]
    assert surplus(metas, keep_last=9, keep_best=0) == []


def test_a_folder_can_move(tmp_path: Path) -> None:
    old, new = tmp_path / "here" / "run", tmp_path / "there" / "moved"
    shelf = Shelf(old)
    for value in (1.0, 2.0):
        shelf.write(f"v{value:g}", small_state(value), loss(value))
    content = b"".join(path.read_bytes() for path in old.rglob("*") if path.is_file())
    assert str(tmp_path).encode() not in content
    new.parent.mkdir()
    shutil.move(old, new)
    assert value_of(Shelf(new).read("last").state) == 2.0
    assert value_of(Shelf(new).read("best").state) == 1.0
    assert Shelf(new).write("v3", small_state(3.0)) == "000003-v3"


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shelf = Shelf("run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shelf.write("v1", small_state(1.0))
    assert Shelf(f"file://{tmp_path}/run").names() == ["000001-v1"]


def test_nothing_is_made_until_something_is_written(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "run")
    assert (shelf.names(), shelf.torn(), shelf.newest_valid(), shelf.retain(keep_last=1)) == ([], [], None, [])
    with pytest.raises(NotState, match=r"meta\.value is a tensor"):
        shelf.write("v1", small_state(1.0), {"value": torch.tensor(1.0)})
    assert not (tmp_path / "run").exists()


def test_other_folders_and_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "000001-v1.zip").write_text("mine")
    shelf = Shelf(tmp_path)
    for value in (1.0, 2.0):
        shelf.write(f"v{value:g}", small_state(value))
    shelf.retain(keep_last=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000001-v1.zip", "000002-v2", "notes.txt", "plots"]


def test_several_processes_write_one_checkpoint(shelf: Shelf) -> None:
    from cadenza.checkpoint.format.packing import pack

    states = [{"model": {"w": torch.full((3,), float(rank))}, "rank": rank} for rank in range(3)]
    first = shelf.draft("v1")
    for rank in (1, 2):
        other = shelf.draft("v1", number=first.number)
        first.files.update(other.add(pack(states[rank]), part=f"rank-{rank}"))
        assert shelf.names() == []
    first.add(pack(states[0]))
    name = shelf.commit(first, {"ranks": 3})
    assert difference(shelf.read(name).state, states[0]) is None
    for rank in (1, 2):
        assert difference(shelf.read(name, part=f"rank-{rank}").state, states[rank]) is None
    shelf.verify(name)


def test_a_local_folder_needs_torch_alone(tmp_path: Path) -> None:
    code = """
import sys
for name in ("numpy", "safetensors", "fsspec"):
    sys.modules[name] = None
import warnings
warnings.filterwarnings("ignore")
import torch
from cadenza.checkpoint import Shelf, Writer, save_weights, load_weights
writer = Writer(Shelf(sys.argv[1]), keep_last=1)
writer.save("v1", {"model": {"w": torch.arange(3)}})
writer.close()
print(Shelf(sys.argv[1]).read().state)
try:
    Shelf("memory://x")
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "{'model': {'w': tensor([0, 1, 2])}}",
        "memory://x needs fsspec: pip install 'cadenza[checkpoint]'",
    ]
