"""Tensors come back with their type, their strides and whom they share memory with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from cadenza.checkpoint import Shelf, Snapshot
from cadenza.checkpoint.format.layout import TYPES

from .states import bits, difference


def through(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    shelf = Shelf(folder)
    return shelf.read(shelf.write("s", state)).state


def random_bits(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    count = torch.Size(shape).numel() * dtype.itemsize
    values = torch.randint(0, 2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8)
    return values.view(dtype).view(shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_every_type_comes_back_bit_by_bit(part: str, dtype: torch.dtype, tmp_path: Path) -> None:
    named = {
        "matrix": random_bits((3, 4), dtype),
        "scalar": random_bits((), dtype),
        "empty": torch.empty((2, 0, 3), dtype=dtype),
        "transposed": random_bits((3, 4), dtype).t(),
    }
    assert difference(through({part: named}, tmp_path)[part], named) is None


LAYOUTS = {
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last 3d": torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    "transposed": torch.randn(3, 4).t(),
    "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
    "expanded": torch.randn(3, 1).expand(3, 1000),
    "one row expanded": torch.randn(4).expand(5, 4),
    "sizes of one": torch.randn(1, 3, 1, 2).transpose(0, 2),
    "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_strides_come_back(tensor: Tensor, tmp_path: Path) -> None:
    for part in ("model", "optimizer"):
        back = through({part: {"x": tensor}}, tmp_path)[part]["x"]
        assert back.stride() == tensor.stride()
        assert torch.equal(back, tensor)


def test_a_part_of_a_large_tensor_takes_only_its_own_room(tmp_path: Path) -> None:
    back = through({"x": torch.zeros(1000, 1000)[:, 3]}, tmp_path)["x"]
    assert back.untyped_storage().nbytes() == 4000
    assert sum(path.stat().st_size for path in tmp_path.rglob("state.safetensors")) < 5000


def memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7, bias=False))
    model[1].weight = model[0].weight
    state = through({"model": model.state_dict(), "again": {"weight": model[0].weight}}, tmp_path)
    weights = state["model"]
    assert memory(weights["0.weight"]) == memory(weights["1.weight"]) == memory(state["again"]["weight"])
    folder = next(tmp_path.glob("000001-*"))
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    assert list(stored) == ["0.weight"]
    assert torch.equal(stored["0.weight"], model[0].weight)
    assert not (folder / "state.safetensors").exists()
    assert '"1.weight": "0.weight"' in (folder / "manifest.json").read_text()


def test_safetensors_reads_the_weights_under_their_own_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[3].weight = model[2].weight
    model = model.to(memory_format=torch.channels_last)
    Shelf(tmp_path).write("s", {"model": model.state_dict()})
    fresh = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    fresh[3].weight = fresh[2].weight
    missing, unexpected = safetensors.torch.load_model(fresh, next(tmp_path.glob("*/model.safetensors")))
    assert not missing
    assert not unexpected
    assert all(
        bits(a) == bits(b) for a, b in zip(fresh.state_dict().values(), model.state_dict().values(), strict=True)
    )


def test_views_of_one_memory_stay_views_of_one_memory(tmp_path: Path) -> None:
    flat = torch.randn(24)
    views = {
        "rows": flat[:12].view(3, 4),
        "columns": flat[:12].view(3, 4).t(),
        "end": flat[12:],
        "every second": flat[1::2],
        "bytes": flat.view(torch.uint8)[4:8],
        "expanded": flat[5:6].expand(3),
    }
    back = through({"model": {"rows": views.pop("rows")}, "others": views}, tmp_path)
    rows, others = back["model"]["rows"], back["others"]
    assert difference(others, views) is None
    rows.fill_(7.0)
    assert torch.equal(others["columns"], torch.full((4, 3), 7.0))
    assert torch.equal(others["every second"][:6], torch.full((6,), 7.0))
    assert bits(others["bytes"]) == bits(torch.tensor([7.0]))
    others["expanded"][0] = 3.0
    assert rows[1, 1] == 3.0


def test_flattened_weights_of_a_recurrent_layer_stay_flattened(tmp_path: Path) -> None:
    flat = torch.randn(100)
    state = {"model": {"l0": flat[:60].view(6, 10), "l1": flat[60:].view(4, 10)}}
    back = through(state, tmp_path)["model"]
    assert memory(back["l0"]) == memory(back["l1"])
    assert difference(back, state["model"]) is None


def test_equal_names_do_not_hide_each_other(tmp_path: Path) -> None:
    model = {"a.b": torch.tensor([1]), "a": {"b": torch.tensor([2])}, "__metadata__": torch.tensor([3])}
    state = {"model": model, "x": {1: torch.tensor([4]), "1": torch.tensor([5])}}
    assert difference(through(state, tmp_path), state) is None


# The copy in main memory ---------------------------------------------------------------------------------------------


def test_a_snapshot_does_not_change_with_the_model(tmp_path: Path) -> None:
    weight = torch.randn(3, 4)
    state = {"model": {"weight": weight, "view": weight.t()}, "n": 1}
    expected = {"model": {"weight": weight.clone(), "view": weight.clone().t()}, "n": 1}
    packed = Snapshot().take(state)
    weight.zero_()
    state["n"] = 2
    shelf = Shelf(tmp_path)
    assert difference(shelf.read(shelf.write("s", packed)).state, expected) is None


def test_the_next_snapshot_uses_the_same_memory() -> None:
    snapshot = Snapshot()
    state = {"model": {"a": torch.randn(5), "b": torch.randn(3, dtype=torch.float64)}, "e": torch.empty(0)}
    first = [value.data_ptr() for value in snapshot.take(state).values]
    state["model"]["a"].add_(1)
    packed = snapshot.take(state)
    assert [value.data_ptr() for value in packed.values] == first
    assert torch.equal(packed.values[0], state["model"]["a"])
    larger = snapshot.take({"x": torch.arange(1000)})
    assert torch.equal(larger.values[0], torch.arange(1000))
