"""Folders made by somebody who means harm: nothing in them is executed, and nothing outside them is read."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadenza.checkpoint import Damaged, Shelf, UnknownFormat, load_weights
from cadenza.checkpoint.format.manifest import marker_of

from ..processes import run
from .states import small_state, value_of

FILES = ("COMMITTED", "manifest.json", "model.safetensors", "state.json", "state.safetensors")


class Touch:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shelf = Shelf(tmp_path / "shelf")
    return tmp_path / "shelf" / shelf.write("v1", small_state(1.0))


def signed(folder: Path) -> None:
    """Makes manifest and marker fit the files, as anybody can: checksums are no signatures."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        path = folder / name
        if path.is_file():
            content = path.read_bytes()
            manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change_manifest(folder, lambda document: document.update(manifest))


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((folder / "manifest.json").read_text())
    change(document)
    text = json.dumps(document).encode()
    (folder / "manifest.json").write_bytes(text)
    (folder / "COMMITTED").write_bytes(marker_of(text))


def change_state(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((folder / "state.json").read_text())
    change(document)
    (folder / "state.json").write_text(json.dumps(document))
    signed(folder)


# Pickles -------------------------------------------------------------------------------------------------------------


def pickles(trace: Path) -> list[bytes]:
    torch_file = trace.with_suffix(".pt")
    torch.save({"x": Touch(trace)}, torch_file)
    content = torch_file.read_bytes()
    torch_file.unlink()
    return [pickle.dumps(Touch(trace)), pickle.dumps(Touch(trace), protocol=0), content]


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["pickle", "pickle in ASCII", "torch.save"])
@pytest.mark.parametrize("name", [*FILES, "data.pkl", "state.pt", "__init__.py", "manifest.json.pkl", "optimizer.bin"])
@pytest.mark.parametrize("with_checksums", [False, True])
def test_a_malicious_pickle_under_any_name_is_not_executed(
    folder: Path, tmp_path: Path, name: str, kind: int, with_checksums: bool
) -> None:
    trace = tmp_path / "executed"
    content = pickles(trace)[kind]
    pickle.loads(pickles(trace)[0])
    assert trace.exists(), "it would leave a trace"
    trace.unlink()
    (folder / name).write_bytes(content)
    if with_checksums and name not in ("COMMITTED", "manifest.json"):
        signed(folder)
    shelf = Shelf(folder.parent)
    for read in (shelf.newest_valid, lambda: shelf.read(folder.name), lambda: load_weights(folder), shelf.metas):
        try:
            read()
        except Damaged:
            assert name in FILES
    assert not trace.exists()


def test_no_module_that_unpickles_is_needed() -> None:
    """Reading works in an interpreter in which every way to unpickle raises."""
    code = """
import pickle, tempfile, torch
from cadenza.checkpoint import Shelf
from tests.checkpoint.states import small_state, value_of
def refuse(*_, **__):
    raise SystemExit("something was unpickled")
shelf = Shelf(tempfile.mkdtemp())
shelf.write("v1", small_state(1.0))
pickle.load = pickle.loads = pickle.Unpickler = torch.load = torch.serialization.load = refuse
assert value_of(shelf.read("last").state) == 1.0
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


# Names that lead elsewhere -------------------------------------------------------------------------------------------

ELSEWHERE = [
    "/etc/passwd",
    "../secret",
    "..",
    ".",
    "",
    "sub/state.json",
    "..\\secret",
    "C:\\secret",
    "C:secret",
    "//host/share",
    "file:///etc/passwd",
    "s3://bucket/key",
    "state.json\0",
    "state.json\n",
    "model.safetensors/../../secret",
    "NUL",
]


@pytest.mark.parametrize("name", ELSEWHERE, ids=repr)
def test_a_manifest_cannot_name_what_lies_elsewhere(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("{}")
    secret = {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    change_manifest(folder, lambda document: document["files"].update({name: secret}))
    with pytest.raises(Damaged, match="a checkpoint has none of that name"):
        Shelf(folder.parent).read(folder.name)


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="there are no links")
@pytest.mark.parametrize("file", FILES)
def test_links_are_not_followed(folder: Path, tmp_path: Path, file: str) -> None:
    secret = tmp_path / "secret"
    (folder / file).rename(secret)
    (folder / file).symlink_to(secret)
    with pytest.raises(Damaged, match="missing"):
        Shelf(folder.parent).read(folder.name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    (folder / "state.json").unlink()
    os.mkfifo(folder / "state.json")
    with pytest.raises(Damaged, match="missing"):
        Shelf(folder.parent).read(folder.name)


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", "", ".hidden", "x" * 200, "C:x", "é", "a b", 7])
def test_a_checkpoint_cannot_be_called_so(tmp_path: Path, name: Any) -> None:
    with pytest.raises(ValueError, match="a checkpoint cannot be called"):
        Shelf(tmp_path).write(name, small_state(1.0))


# Records that make no sense ------------------------------------------------------------------------------------------

SENSELESS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no tensors": lambda d: d["tensors"].clear(),
    "a stride out of memory": lambda d: d["tensors"][0].update(stride=[10**15, 1]),
    "a negative stride": lambda d: d["tensors"][0].update(stride=[-4, 1]),
    "a negative shape": lambda d: d["tensors"][0].update(shape=[-3, -4]),
    "a shape of text": lambda d: d["tensors"][0].update(shape=["3", "4"]),
    "another shape": lambda d: d["tensors"][0].update(shape=[3, 5]),
    "too large a shape": lambda d: d["tensors"][0].update(shape=[2**40, 2**20]),
    "no type": lambda d: d["tensors"][0].update(dtype="object"),
    "memory that is not there": lambda d: d["tensors"][0].update(shared=[7, 0]),
    "memory from the end": lambda d: (d.update(shared=[1000]), d["tensors"][0].update(shared=[-1, 0])),
    "out of shared memory": lambda d: (d.update(shared=[8]), d["tensors"][0].update(shared=[0, 0])),
    "before shared memory": lambda d: (d.update(shared=[800]), d["tensors"][0].update(shared=[0, -64])),
    "a memory of negative size": lambda d: d.update(shared=[-1]),
    "an unknown kind": lambda d: d["tree"].update(x={"$": "os.system", "value": "true"}),
    "an unknown tensor": lambda d: d["tree"].update(x={"$": "tensor", "value": 99}),
    "a tensor without number": lambda d: d["tree"].update(x={"$": "tensor", "value": "0"}),
    "a list as key": lambda d: d["tree"].update(x={"$": "dict", "value": [[[1], 2]]}),
    "bad bytes": lambda d: d["tree"].update(x={"$": "bytes", "value": "%%%"}),
    "no tree": lambda d: d.pop("tree"),
    "a list as tree": lambda d: d.update(tree=[]),
    "another file": lambda d: d["tensors"][0].update(name="../x"),
}


@pytest.mark.parametrize("change", SENSELESS.values(), ids=SENSELESS)
def test_records_that_make_no_sense_are_refused(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    change_state(folder, change)
    with pytest.raises(Damaged, match="its files make no sense"):
        Shelf(folder.parent).read(folder.name)


def test_deep_json_is_refused(folder: Path) -> None:
    (folder / "state.json").write_text('{"tree": ' + "[" * 10**5 + "]" * 10**5 + "}")
    signed(folder)
    with pytest.raises(Damaged):
        Shelf(folder.parent).read(folder.name)


HEADERS: dict[str, bytes] = {
    "nothing": b"",
    "a short length": b"\x01\x00",
    "a huge length": b"\xff" * 8 + b"{}",
    "no JSON": (3).to_bytes(8, "little") + b"abc",
    "a list": (2).to_bytes(8, "little") + b"[]",
    "deep": (10**5).to_bytes(8, "little") + b"[" * 10**5,
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_headers_that_make_no_sense_are_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    signed(folder)
    with pytest.raises(Damaged):
        Shelf(folder.parent).read(folder.name)


# Versions ------------------------------------------------------------------------------------------------------------


def test_a_newer_format_is_refused_and_not_passed_over(folder: Path) -> None:
    Shelf(folder.parent).write("v2", small_state(2.0))
    newest = folder.parent / "000002-v2"
    change_manifest(newest, lambda document: document.update(format=2, versions={"cadenza": "9.0"}))
    for read in (Shelf(folder.parent).newest_valid, lambda: Shelf(folder.parent).read("000002-v2")):
        with pytest.raises(UnknownFormat, match=r"000002-v2 has the format 2, and this Cadenza reads up to 1.*9\.0"):
            read()
    assert value_of(Shelf(folder.parent).read("000001-v1").state) == 1.0


@pytest.mark.parametrize("version", [0, -1, True, "1", None, 1.5])
def test_a_format_that_never_was_is_refused(folder: Path, version: Any) -> None:
    change_manifest(folder, lambda document: document.update(format=version))
    with pytest.raises(UnknownFormat):
        Shelf(folder.parent).read(folder.name)
