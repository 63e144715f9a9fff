"""Each process stores its part of a model that FSDP has spread, and goes on to the last bit; one process can, too."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest
from torch import distributed as dist

from cadenza.callbacks import Checkpoint
from cadenza.checkpoint import Damaged, Shelf, load_weights
from cadenza.checkpoint.backends.disk import Disk
from cadenza.distributed import FSDP

from ..processes import ranks
from .crew import fitted, play
from .trainings import Network, difference, ledger, train

pytestmark = pytest.mark.timeout(300)
HOW = {"strategy": "fsdp", "norm": False, "samples": 100, "accumulate": 3, "grows": True}
"""Under FSDP processes look every eighth batch whether a save is wanted: in the middle of a window, and of an epoch."""


def go(folder, stop, options):
    return train(folder, stop, **{**HOW, **options})


def spoil(folder):
    """Rank 0 changes a byte in the newest part of rank 1; what is older must be gone on from."""
    if dist.get_rank() == 0:
        damage(Path(folder))
    dist.barrier()


def damage(folder):
    path = folder / Shelf(folder).names()[-1] / "shard-1.state.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


class Full:
    """Stands for ``os`` where a disk writes: there is no room left for files."""

    def __getattr__(self, name):
        return getattr(os, name)

    def write(self, *_):
        raise OSError(28, "No space left on device")


def full_disk(folder):
    """Rank 1 has no room for its part; the run goes on without checkpoints, and says why."""
    before = Disk.__init__.__defaults__
    Disk.__init__.__defaults__ = (Full(),) if dist.get_rank() == 1 else before
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = fitted([Checkpoint(to=folder)], strategy="fsdp", epochs=2)
    finally:
        Disk.__init__.__defaults__ = before
    return found["error"], found["clock"][2], [str(one.message) for one in said], Shelf(folder).names()


@pytest.fixture(scope="module")
def played():
    with tempfile.TemporaryDirectory() as folder:
        killed, alone = f"{folder}/killed", f"{folder}/alone"
        scenarios = [(go, (f"{folder}/whole", None, {}))]
        scenarios += [(go, (killed, stop, {"background": True})) for stop in (10, 23)]
        scenarios += [(spoil, (killed,)), (go, (killed, None, {}))]
        scenarios += [(go, (alone, 10, {"to": f"local://{alone}", "background": True}))]
        gathered = {"strategy": FSDP(checkpoints="whole")}
        scenarios += [(go, (f"{folder}/gathered", stop, gathered)) for stop in (10, None)]
        scenarios += [(full_disk, (f"{folder}/full",))]
        answers = ranks(play, folder, scenarios, results="all", timeout=280)
        yield folder, answers


@pytest.fixture
def folder(played):
    return played[0]


def test_a_part_that_cannot_be_written_is_told_and_nothing_is_committed(played):
    error, epochs, said, names = played[1][0][-1]
    assert (error, epochs, names) == (None, 2, [])
    assert any("rank 1 could not store its part" in one and "No space left" in one for one in said)


def test_a_resumed_run_equals_a_whole_one(folder):
    assert difference(f"{folder}/whole", f"{folder}/killed") is None
    assert any(name.startswith("damaged-") for name in os.listdir(f"{folder}/killed"))


def test_what_rank_0_gathers_and_writes_goes_on_as_well(folder):
    assert difference(f"{folder}/whole", f"{folder}/gathered") is None
    newest = Path(folder, "gathered", Shelf(f"{folder}/gathered").names()[-1])
    assert "model.safetensors" in os.listdir(newest)
    assert not list(newest.glob("shard-*"))


def test_each_process_stores_its_part(folder):
    newest = Path(folder, "whole", Shelf(f"{folder}/whole").names()[-1])
    files = {path.name: path.stat().st_size for path in newest.iterdir()}
    parts = [f"shard-{rank}.state.safetensors" for rank in range(2)]
    assert {*parts, "manifest.json", "COMMITTED", "state.json"} <= files.keys()
    assert "model.safetensors" not in files
    assert abs(files[parts[0]] - files[parts[1]]) < files[parts[0]] / 2
    assert not any(name.endswith((".pt", ".pkl", ".metadata", ".distcp")) for name in files)
    assert set(parts) <= json.loads((newest / "manifest.json").read_text())["files"].keys()


def test_weights_come_out_whole(folder):
    expected = {name: tensor.shape for name, tensor in Network(norm=False).state_dict().items()}
    assert {name: tensor.shape for name, tensor in load_weights(f"{folder}/whole").items()} == expected


def test_one_process_goes_on_with_what_two_saved_through_fsspec(folder):
    with pytest.warns(UserWarning, match="saved with 2 processes and goes on with 1"):
        clock = go(f"{folder}/alone", None, {"strategy": "single"})
    assert clock[1:] == (15, 300, 3)
    first = [i for (epoch, batch), part in ledger(f"{folder}/alone", 2, 2).items() if batch <= 8 for i in part]
    rest = [i for (epoch, _), part in ledger(f"{folder}/alone", 1, 1).items() if epoch == 0 for i in part]
    assert sorted(first + rest) == list(range(100))


def test_a_part_that_is_damaged_is_found_by_one_process_too(folder, tmp_path):
    shutil.copytree(f"{folder}/whole", tmp_path / "copy")
    shelf = Shelf(tmp_path / "copy")
    names = shelf.names()
    damage(tmp_path / "copy")
    with pytest.raises(Damaged, match=r"shard-1\.state\.safetensors is not what was written"):
        shelf.verify(names[-1])
    assert shelf.newest_valid().name == names[-2]
