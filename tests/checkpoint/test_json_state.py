"""Whatever plain data a state holds comes back as it was; whatever else is refused by its place in the state."""

from __future__ import annotations

import enum
import random
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.checkpoint.states import difference
from torch import nn

from cadenza.checkpoint import NotState, Shelf

texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)  # type: ignore[arg-type]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    order = draw(st.permutations(range(len(shape))))
    return torch.randn(shape, generator=generator).mul(3).to(dtype).permute(order)


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    texts,
    st.binary(max_size=8),
    tensors(),
)
keys = texts | st.integers()
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
    ),
    max_leaves=8,
)


def through(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    shelf = Shelf(folder)
    return shelf.read(shelf.write("s", state)).state


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(state=st.dictionaries(texts.filter(lambda name: name != "$"), trees, max_size=3), model=trees)
def test_any_tree_comes_back_as_it_was(state: dict[str, Any], model: Any) -> None:
    state = {**state, "model": model}
    shelf = Shelf(f"memory://tree-{random.getrandbits(64)}")
    try:
        assert difference(shelf.read(shelf.write("s", state)).state, state) is None
    finally:
        shelf.store.filesystem.store.clear()  # type: ignore[attr-defined]


EXACT = {
    "nan": float("nan"),
    "nan with a message": numpy.frombuffer(bytes.fromhex("7ff800000000beef"), ">f8")[0].item(),
    "inf": float("inf"),
    "minus inf": -float("inf"),
    "minus zero": -0.0,
    "smallest": 5e-324,
    "third": 1 / 3,
    "big": 10**5000,
    "minus big": -(2**64),
    "edge": 2**63 - 1,
    "text": 'a\x00b\ud800"\\é𝄞',
    "bytes": bytes(range(256)),
    "empty": [{}, [], (), "", b""],
    "dollar": {"$": "tensor", "value": 0},
    "many numbers": [0.1 * i for i in range(99)] + [float("nan"), -0.0, float("-inf")],
    "many whole numbers": [*range(-50, 50), 2**63 - 1, -(2**63)],
    "many large numbers": [*range(100), 2**63],
    "many of two kinds": [*range(100), 0.5],
    "many flags": [True] * 100,
    "a tuple of many": tuple(range(100)),
    "mixed keys": {0: "whole number", "0": "text", -1: None},
}


@pytest.mark.parametrize("value", EXACT.values(), ids=EXACT)
def test_corners_come_back_exactly(value: Any, tmp_path: Path) -> None:
    assert difference(through({"x": value}, tmp_path)["x"], value) is None


def test_a_long_history_is_stored_as_tensors(tmp_path: Path) -> None:
    losses = [1 / (i + 1) for i in range(100_000)]
    assert through({"history": {"train/loss": losses}}, tmp_path)["history"]["train/loss"] == losses
    folder = next(tmp_path.glob("000001-*"))
    assert (folder / "state.json").stat().st_size < 1000
    assert Shelf(tmp_path).write("t", {}, {"many": losses[:100]})


def test_generators_go_on_from_where_they_were(tmp_path: Path) -> None:
    python, array = random.Random(3), numpy.random.default_rng(3)
    old = numpy.random.RandomState(3)
    state = {
        "python": python.getstate(),
        "numpy": array.bit_generator.state,
        "numpy, the old one": old.get_state(),
        "torch": torch.Generator().manual_seed(3).get_state(),
    }
    back = through({"rng": state}, tmp_path)["rng"]
    expected = python.random(), array.random(), old.rand(), torch.rand(1, generator=torch.Generator().manual_seed(3))
    python.setstate(back["python"])
    array.bit_generator.state = back["numpy"]
    old.set_state(back["numpy, the old one"])
    generator = torch.Generator()
    generator.set_state(back["torch"])
    assert (python.random(), array.random(), old.rand(), torch.rand(1, generator=generator)) == expected


@pytest.mark.parametrize(
    "value",
    [
        numpy.float64(1 / 3),
        numpy.float32("nan"),
        numpy.int8(-3),
        numpy.bool_(True),
        numpy.arange(6, dtype=numpy.uint32).reshape(2, 3),
        numpy.asfortranarray(numpy.eye(3)),
        numpy.arange(5)[::-1],
        numpy.zeros((0, 2), dtype=numpy.complex128),
    ],
    ids=repr,
)
def test_numpy_comes_back_as_numpy(value: Any, tmp_path: Path) -> None:
    back = through({"x": value}, tmp_path)["x"]
    assert type(back) is type(value)
    assert back.dtype == value.dtype
    assert back.tobytes() == value.tobytes()


def test_a_state_dict_keeps_its_versions(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    back = through({"model": model.state_dict()}, tmp_path)["model"]
    assert back._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    model.load_state_dict(back)


class Colour(enum.IntEnum):
    RED = 1


class Foo:
    pass


Pair = namedtuple("Pair", "x y")
REFUSED = {
    "an object": (Foo(), "callbacks.ema.helper is a Foo"),
    "inside a list": ([1, Foo()], r"callbacks.ema.helper.1 is a Foo"),
    "a set": ({1}, "helper is a set"),
    "a function": (len, "builtin_function"),
    "an enum": (Colour.RED, "is a Colour"),
    "a namedtuple": (Pair(1, 2), "is a Pair"),
    "a counter": (Counter("aa"), "is a Counter"),
    "a dtype": (torch.float32, "is a dtype"),
    "a complex number": (1j, "is a complex"),
    "a tuple as key": ({(1, 2): 3}, r"callbacks.ema.helper has the key \(1, 2\), a tuple"),
    "True as key": ({True: 3}, "has the key True"),
    "objects in an array": (numpy.array([Foo()]), "helper is a ndarray of the type object"),
    "text in an array": (numpy.array(["a"]), "there is no tensor"),
    "sparse": (torch.eye(2).to_sparse(), "layout torch.sparse_coo"),
    "without values": (torch.empty(2, device="meta"), "without values"),
    "uninitialized": (nn.parameter.UninitializedParameter(), "is an UninitializedParameter"),
}


@pytest.mark.parametrize(("value", "message"), REFUSED.values(), ids=REFUSED)
def test_anything_else_is_refused_by_its_place(value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(NotState, match=message):
        through({"callbacks": {"ema": {"helper": value}}}, tmp_path / "shelf")
    assert not (tmp_path / "shelf").exists()


def test_what_contains_itself_is_refused(tmp_path: Path) -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    with pytest.raises(NotState, match=r"x\.1 contains itself"):
        through({"x": loop}, tmp_path)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(NotState, match="deeper than 100"):
        through({"x": deep}, tmp_path)


@pytest.mark.parametrize("state", [[], {1: 2}, None, Foo()], ids=lambda one: type(one).__name__)
def test_a_state_is_a_dict_with_names(state: Any, tmp_path: Path) -> None:
    with pytest.raises(NotState, match="a state is a dict with names"):
        through(state, tmp_path)
