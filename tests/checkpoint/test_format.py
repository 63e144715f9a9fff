"""Every format that was ever written is read for ever. The folders in ``data`` are never written anew."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy
import safetensors.torch
import torch

from cadenza.checkpoint import FORMAT, Shelf

from .states import difference

DATA = Path(__file__).parent / "data"


def first_state() -> dict[str, Any]:
    """What was written in format 1, into ``data/format-1``."""
    embedding = torch.arange(12, dtype=torch.float32).view(4, 3) / 7
    model: Any = OrderedDict(
        {
            "embedding.weight": embedding,
            "head.weight": embedding,
            "conv.weight": torch.arange(36.0).view(2, 2, 3, 3).to(memory_format=torch.channels_last),
            "norm.num_batches_tracked": torch.tensor(17),
            "half": torch.arange(3).to(torch.bfloat16),
            "eighth": torch.arange(4).to(torch.float8_e4m3fn),
            "mask": torch.tensor([True, False]),
            "empty": torch.empty(0, 3),
        }
    )
    model._metadata = OrderedDict({"": {"version": 1}, "norm": {"version": 2}})
    flat = torch.arange(10, dtype=torch.float64)
    moments = {0: {"step": torch.tensor(500.0), "exp_avg": (embedding * 2).t()}, 1: {"first": flat[:4], "all": flat}}
    return {
        "model": model,
        "optimizer": {"state": moments, "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}]},
        "rng": {
            "python": (3, tuple(range(5)), None),
            "numpy": ("MT19937", numpy.arange(4, dtype=numpy.uint32), 2, 0.0),
        },
        "clock": {"steps": 500, "samples": 2**70, "best": float("inf"), "worst": float("nan"), "zero": -0.0},
        "callbacks": {"Notes": {"text": "é𝄞\n", "raw": b"\x00\xff", "on": True, "nothing": None, "$": "dollar"}},
        "history": {"train/loss": [1 / (n + 1) for n in range(70)], "steps": tuple(range(70))},
        "complex": torch.tensor([1 + 2j, -0.5j], dtype=torch.complex128),
    }


FIRST_META = {"epoch": 3, "monitor": "val/loss", "value": 0.25, "mode": "min"}


def test_the_oldest_format_is_read() -> None:
    saved = Shelf(DATA / "format-1").read("last")
    assert difference(saved.state, first_state()) is None
    assert saved.state["model"]._metadata == first_state()["model"]._metadata
    assert (saved.meta, saved.name, saved.number) == (FIRST_META, "000007-epoch=3", 7)
    tied = saved.state["model"]
    assert tied["embedding.weight"].data_ptr() == tied["head.weight"].data_ptr()
    saved.state["optimizer"]["state"][1]["all"][0] = 5.0
    assert saved.state["optimizer"]["state"][1]["first"][0] == 5.0


def test_there_is_one_of_every_format() -> None:
    written = sorted(path.parent.parent.name for path in DATA.glob("*/*/manifest.json"))
    assert written == [f"format-{version}" for version in range(1, FORMAT + 1)]
    for path in DATA.glob("*/*/manifest.json"):
        assert f"format-{json.loads(path.read_text())['format']}" == path.parent.parent.name


def test_what_is_written_today_is_the_same(tmp_path: Path) -> None:
    """Two programs of one format write files that differ in nothing but the versions of the programs."""
    shelf = Shelf(tmp_path)
    shelf.used = 6
    today = tmp_path / shelf.write("epoch=3", first_state(), FIRST_META)
    then = DATA / f"format-{FORMAT}" / "000007-epoch=3"
    for file in ("model.safetensors", "state.safetensors", "state.json"):
        assert (today / file).read_bytes() == (then / file).read_bytes(), file
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (today, then)]
    for manifest in manifests:
        manifest.pop("versions")
    assert manifests[0] == manifests[1]


def test_other_programs_read_the_weights() -> None:
    path = DATA / "format-1" / "000007-epoch=3" / "model.safetensors"
    stored = safetensors.torch.load_file(path)
    expected = first_state()["model"]
    assert sorted(stored) == sorted(expected.keys() - {"head.weight"})
    for name, tensor in stored.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor.double(), expected[name].double())
