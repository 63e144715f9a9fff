"""A resumed pass over a map-style loader equals an uninterrupted one: every batch, every generator, to the last bit."""

from __future__ import annotations

import pytest
from tests.data.course import by_hand, interrupted, straight
from tests.data.loaders import KINDS, build, seeding


@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_gives_what_the_loader_gives(kind: str) -> None:
    assert straight(lambda: build(kind)) == by_hand(lambda: build(kind))


@pytest.mark.parametrize("cuts", [[0], [1], [3], [2, 3, 4], [5, 6, 8], [-1], [-1, -2], [2, -1, 7]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_equals_uninterrupted(kind: str, cuts: list[int]) -> None:
    assert interrupted(lambda: build(kind), cuts) == straight(lambda: build(kind))


def long(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.long)


WORKED = [("shuffled", 2), ("collate", 1), ("unbatched", 2), long("shuffled", 1), long("collate", 2), long("own", 1)]
WORKED += [long(kind, 2) for kind in ("replacement", "keeping", "buckets", "batched", "own", "holding", "weighted")]


@pytest.mark.parametrize(("kind", "workers"), WORKED)
def test_with_workers_an_interrupted_pass_gives_what_an_uninterrupted_one_gives(kind: str, workers: int) -> None:
    whole = straight(lambda: build(kind, num_workers=workers))
    assert whole == by_hand(lambda: build(kind, num_workers=workers))
    assert interrupted(lambda: build(kind, num_workers=workers), [3]) == whole
    assert interrupted(lambda: build(kind, num_workers=workers), [0, 2, 3, 7, -2]) == whole


PERSISTENT = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}


@pytest.mark.parametrize(
    ("kind", "cuts"),
    [
        ("shuffled", [7, -2]),
        ("generator", [-1]),
        *[long(kind, cuts) for kind in ("buckets", "own") for cuts in ([2], [7], [-1, -2], [8, 9, -2])],
    ],
    ids=str,
)
def test_with_workers_that_live_on(kind: str, cuts: list[int]) -> None:
    whole = straight(lambda: build(kind, **PERSISTENT))
    assert whole == by_hand(lambda: build(kind, **PERSISTENT))
    assert interrupted(lambda: build(kind, **PERSISTENT), cuts) == whole


def test_with_a_worker_init_function() -> None:
    how = {"num_workers": 2, "worker_init_fn": seeding}
    whole = straight(lambda: build("shuffled", **how))
    assert whole == by_hand(lambda: build("shuffled", **how))
    assert interrupted(lambda: build("shuffled", **how), [4, 5]) == whole
