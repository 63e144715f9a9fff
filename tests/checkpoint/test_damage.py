"""Whatever happens to the bytes of a checkpoint is found, and the one before it is used, with a message."""

from __future__ import annotations

import errno
import functools
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.checkpoint import Damaged, NoCheckpoint, Shelf, Writer

from .faults import FaultySystem, Fuse
from .states import small_state, value_of


@functools.cache
def written() -> tuple[tuple[str, bytes], ...]:
    """The files of two checkpoints, of the values 1 and 2."""
    with tempfile.TemporaryDirectory() as folder:
        for value in (1.0, 2.0):
            Shelf(folder).write(f"v{value:g}", small_state(value))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return tuple((path.relative_to(folder).as_posix(), path.read_bytes()) for path in files)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    put(tmp_path, dict(written()))
    yield Shelf(tmp_path)
    shutil.rmtree(tmp_path)


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def of_the_second() -> dict[str, bytes]:
    return {name: content for name, content in written() if name.startswith("000002")}


SECOND = ("COMMITTED", "manifest.json", "model.safetensors", "state.json", "state.safetensors")


def test_these_are_the_files_of_a_checkpoint() -> None:
    assert sorted(name.split("/")[1] for name in of_the_second()) == sorted(SECOND)


def used_instead(folder: Path, caplog: Any = None) -> float:
    saved = Shelf(folder).read("last")
    assert list(saved.passed_over) == ["000002-v2"]
    return value_of(saved.state)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_flipped_byte_anywhere_is_found(data: st.DataObject) -> None:
    files = dict(written())
    name = data.draw(st.sampled_from(sorted(of_the_second())), label="file")
    place = data.draw(st.integers(0, len(files[name]) - 1), label="place")
    flip = data.draw(st.integers(1, 255), label="bits")
    content = bytearray(files[name])
    content[place] ^= flip
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), {**files, name: bytes(content)})
        with pytest.raises(Damaged, match="000002-v2"):
            Shelf(folder).read("000002-v2")
        with pytest.raises(Damaged, match="000002-v2"):
            Shelf(folder).verify("000002-v2")
        assert used_instead(Path(folder)) == 1.0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_that_lost_its_end_or_got_a_longer_one_is_found(data: st.DataObject) -> None:
    files = dict(written())
    name = data.draw(st.sampled_from(sorted(of_the_second())), label="file")
    keep = data.draw(st.integers(0, len(files[name])), label="bytes")
    end = data.draw(st.binary(min_size=keep == len(files[name]), max_size=3), label="end")
    changed = files[name][:keep] + end
    if changed == files[name]:
        changed += b"\0"
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), {**files, name: changed})
        assert used_instead(Path(folder)) == 1.0


@pytest.mark.parametrize("file", SECOND)
def test_a_missing_file_is_found(shelf: Shelf, tmp_path: Path, file: str) -> None:
    (tmp_path / "000002-v2" / file).unlink()
    assert used_instead(tmp_path) == 1.0


def test_files_of_another_checkpoint_do_not_pass(shelf: Shelf, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "000001-v1" / "model.safetensors", tmp_path / "000002-v2" / "model.safetensors")
    assert used_instead(tmp_path) == 1.0


def test_the_message_names_it_and_what_is_used(shelf: Shelf, tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "000002-v2" / "state.json").write_bytes(b"{}")
    with caplog.at_level(logging.WARNING, "cadenza"):
        shelf.read("last")
    assert "the checkpoint 000002-v2 in" in caplog.text
    assert "is passed over: state.json is shorter" in caplog.text
    assert "000001-v1 is used" in caplog.text


def test_who_goes_on_sets_it_aside(shelf: Shelf, tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "000002-v2" / "state.json").write_bytes(b"{}")
    shutil.copytree(tmp_path / "000001-v1", tmp_path / "000003-v3")
    (tmp_path / "000003-v3" / "COMMITTED").unlink()
    writer = Writer(shelf, keep_last=1, background=False)
    saved = writer.recover()
    assert saved is not None
    assert value_of(saved.state) == 1.0
    assert sorted(saved.passed_over) == ["000002-v2", "000003-v3"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000001-v1", "damaged-000002-v2", "torn-000003-v3"]
    assert "set aside as torn-000003-v3" in caplog.text
    writer.save("v4", small_state(4.0))
    assert shelf.names() == ["000004-v4"]
    assert (tmp_path / "torn-000003-v3").exists(), "the newest one stays, for whoever wants to know"


def test_if_all_are_damaged_nobody_starts_afresh_unawares(shelf: Shelf, tmp_path: Path) -> None:
    for path in tmp_path.glob("*/state.json"):
        path.write_bytes(b"")
    with pytest.raises(Damaged, match=r"no checkpoint in it can be used.*000002-v2: state\.json.*000001-v1"):
        shelf.newest_valid()


def test_a_save_that_never_was_committed_is_none(tmp_path: Path, caplog: Any) -> None:
    shelf = Shelf(tmp_path)
    assert shelf.newest_valid() is None
    with pytest.raises(NoCheckpoint, match="there is no checkpoint in"):
        shelf.read("last")
    put(tmp_path, {"000001-v1/state.json": b"{"})
    assert shelf.newest_valid() is None
    assert "000001-v1" in caplog.text
    assert Writer(shelf).recover() is None
    assert [path.name for path in tmp_path.iterdir()] == ["torn-000001-v1"]


def test_a_damaged_best_one_is_passed_over(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for value in (1.0, 2.0, 3.0):
        shelf.write(f"v{value:g}", small_state(value), {"mode": "max", "value": -abs(value - 2)})
    assert value_of(shelf.read("best").state) == 2.0
    (tmp_path / "000002-v2" / "model.safetensors").write_bytes(b"")
    assert value_of(shelf.read("best").state) == 3.0


class ReadOnly(FaultySystem):
    """A disk that cannot be written to."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*given: Any) -> Any:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        return refuse


def test_on_a_disk_that_cannot_be_written_to_it_is_passed_over(tmp_path: Path, caplog: Any) -> None:
    shelf = Shelf(tmp_path)
    shelf.write("v1", small_state(1.0))
    shelf.write("v2", small_state(2.0))
    (tmp_path / "000002-v2" / "COMMITTED").unlink()
    saved = Writer(Shelf(tmp_path, system=ReadOnly(Fuse()))).recover()
    assert saved is not None
    assert value_of(saved.state) == 1.0
    assert saved.passed_over == {"000002-v2": "it was never committed"}
    assert "it is left where it is" in caplog.text
