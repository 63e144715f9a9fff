"""Files that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadenza.foundation.row_files import Table
from cadenza.foundation.whole_files import append_whole, set_aside, whole_file, write_whole


def write_half(path: Path) -> None:
    with whole_file(path) as unfinished:
        unfinished.write_bytes(b"ne")
        raise TypeError("half of it")


def test_a_file_is_replaced_only_when_all_of_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "model.bin"
    write_whole(path, b"old")
    with pytest.raises(TypeError, match="half of it"):
        write_half(path)
    assert path.read_bytes() == b"old"
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert [file.name for file in path.parent.iterdir()] == ["model.bin"]


def test_the_unfinished_file_ends_as_the_whole_one_does(tmp_path: Path) -> None:
    with whole_file(tmp_path / "trace.json.gz") as unfinished:
        unfinished.write_bytes(b"")
        assert unfinished.name.endswith(".json.gz")


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_appended_stands_at_the_end(tmp_path: Path, on_disk: bool) -> None:
    path = tmp_path / "rows.jsonl"
    append_whole(path, b"1\n", on_disk=on_disk)
    append_whole(path, b"2\n", on_disk=on_disk)
    assert path.read_bytes() == b"1\n2\n"


def test_a_file_is_set_aside_under_a_name_that_is_free(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    assert set_aside(path) is None
    for content in (b"a", b"b"):
        path.write_bytes(content)
        assert set_aside(path) is not None
    found = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert found == {"rows.1.csv": b"a", "rows.2.csv": b"b"}


def test_a_table_goes_on_in_its_file_and_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    Table(path, "csv").append([{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}])
    table = Table(path, "csv")
    table.read_columns()
    table.append([{"loss": 0.125, "step": 3}])
    assert path.read_text() == "step,loss\n1,0.5\n2,0.25\n3,0.125\n"
    table.cut(1)
    assert path.read_text() == "step,loss\n1,0.5\n"
