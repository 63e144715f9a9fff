"""Tensors that several processes stored: which records are possible, and reading some of the values of a file."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from cadenza.checkpoint.format.chunks import Spread
from cadenza.checkpoint.format.tensor_file import pieces, read_header, read_values

GOOD: dict[str, Any] = {
    "name": "model.weight",
    "dtype": "float32",
    "shape": [4, 2],
    "dim": 0,
    "chunks": [["shard-0", [0, 0], [3, 2]], ["shard-1", [3, 0], [1, 2]]],
}


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_a_record_comes_back(dim: int | None) -> None:
    assert Spread.of({**GOOD, "dim": dim}).record() == {**GOOD, "dim": dim}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"chunks": [["shard-0", [0, 0], [3, 2]], ["shard-1", [4, 0], [1, 2]]]}, "lies outside"),
        ({"chunks": [["shard-0", [0], [8]]]}, "lies outside"),
        ({"chunks": [["shard-0", [0, 0], [3, 2]]]}, "do not fill it"),
        ({"chunks": [["shard-0", [0, -1], [4, 2]]]}, "are no sizes"),
        ({"dim": 2}, "along no possible dimension"),
        ({"dim": -1}, "along no possible dimension"),
        ({"dim": True}, "along no possible dimension"),
    ],
)
def test_an_impossible_record_is_an_error(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Spread.of({**GOOD, **change})


def test_values_that_are_not_wanted_are_skipped() -> None:
    held = {name: torch.randn(count) for name, count in {"a": 5, "b": 1, "c": 3}.items()}
    content = b"".join(pieces(held))
    file = io.BytesIO(content)

    def read(into: memoryview) -> None:
        assert file.readinto(into) == len(into)

    header = read_header(read, len(content))
    last = torch.zeros(3)
    read_values(read, header, {"c": last})
    assert torch.equal(last, held["c"])
