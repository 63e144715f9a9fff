"""A resumed pass over a stream equals an uninterrupted one, by the data set's own state or by reading again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.data.course import by_hand, interrupted, straight
from tests.data.loaders import Keeper, build_stream

from cadenza.data import prepare

CUTS = [[0], [1], [4], [2, 3, 4], [5, 6, 7], [-1, -2], [2, -1, 7]]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize(
    "size", [{"batch_size": 4}, {"batch_size": None}, {"batch_size": 5, "drop_last": True}], ids=str
)
@pytest.mark.parametrize("kind", ["stream", "keeper", "iterator"])
def test_a_stream_read_in_this_process_goes_on_where_it_was_cut(
    kind: str, size: dict[str, Any], cuts: list[int]
) -> None:
    whole = straight(lambda: build_stream(kind, **size))
    assert whole == by_hand(lambda: build_stream(kind, **size))
    assert interrupted(lambda: build_stream(kind, **size), cuts) == whole


def long(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("buffered", {"num_workers": 2}),
        ("keeper", {"num_workers": 2, "persistent_workers": True}),
        long("buffered", {"num_workers": 1}),
        long("stream", {"num_workers": 2}),
        long("stream", {"num_workers": 2, "batch_size": None}),
        long("uneven", {"num_workers": 3, "prefetch_factor": 1}),
        long("keeper", {"num_workers": 2}),
        long("keeper", {"num_workers": 2, "batch_size": 3, "drop_last": True}),
        long("buffered", {"num_workers": 2, "persistent_workers": True}),
        long("iterator", {"num_workers": 1}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_read_by_workers(kind: str, how: dict[str, Any]) -> None:
    whole = straight(lambda: build_stream(kind, **how))
    assert whole == by_hand(lambda: build_stream(kind, **how))
    for cuts in [[3], [0, 1, 2, 7, -2]]:
        assert interrupted(lambda: build_stream(kind, **how), cuts) == whole


def test_a_data_set_with_state_is_not_read_again() -> None:
    loader = build_stream("keeper")
    feed = prepare(loader, resumable=True)
    batches = iter(feed)
    for _ in range(4):
        next(batches)
    fresh = build_stream("keeper")
    again = prepare(fresh, resumable=True)
    again.load_state_dict(feed.state_dict(4))
    next(iter(again))
    assert isinstance(fresh.dataset, Keeper)
    assert fresh.dataset.reads == 4


def test_another_number_of_workers_is_refused() -> None:
    feed = prepare(build_stream("stream"), resumable=True)
    next(iter(feed))
    other = prepare(build_stream("stream", num_workers=2), resumable=True)
    other.load_state_dict(feed.state_dict(1))
    with pytest.raises(ValueError, match=r"num_workers=0.*must be the same"):
        iter(other)
