"""Nested containers keep their types, their order and what is noted on them, whatever is done with their leaves."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from typing import Any

import pytest
import torch

from cadenza.foundation.tree import (
    entries,
    entries_and_fields,
    entries_if_any,
    fold,
    leaves,
    map_tree,
    map_with_path,
    plain,
    same_tree,
    tensors_of,
    walk,
    with_dicts,
    with_notes,
    with_tensors,
)

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    twice: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", self.x * 2)


FORMS = [
    {"a": 1, "b": [2, (3,)]},
    [Pair(1, 2), [3]],
    OrderedDict(b=1, a=2),
    defaultdict(list, a=1),
    UserDict(a=[1]),
    (),
    5,
]


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_types_and_order_stay(form: Any) -> None:
    mapped = map_tree(form, lambda leaf: leaf)
    assert mapped == form
    assert repr(mapped) == repr(form)
    assert [type(node) for _, node in walk(mapped)] == [type(node) for _, node in walk(form)]


def test_mappings_become_dicts_and_tuples_lists_where_that_is_asked() -> None:
    form = OrderedDict(a=Pair(1, (2,)))
    assert repr(map_tree(form, lambda leaf: leaf, rebuild=with_dicts)) == "{'a': Pair(x=1, y=(2,))}"
    assert repr(map_tree(form, lambda leaf: leaf, rebuild=plain)) == "{'a': [1, [2]]}"


def test_fields_of_dataclasses_are_leaves_only_where_they_are_asked_for() -> None:
    form = Frozen(3)
    assert list(leaves(form)) == [((), form)]
    assert list(leaves(form, entries_and_fields)) == [(("x",), 3), (("twice",), 6)]
    assert map_tree(form, lambda leaf: leaf + 1, entries_and_fields) == Frozen(4)  # made by its own __init__
    tensors = with_tensors(Frozen(torch.ones(1)), lambda tensor: tensor + 1)
    assert [float(tensor) for tensor in tensors_of(tensors)] == [2.0, 3.0]  # each is replaced


def test_paths_lead_to_the_leaves() -> None:
    form = {"a": [1, {"b": 2}], "c": {}}
    assert list(leaves(form)) == [(("a", 0), 1), (("a", 1, "b"), 2)]
    assert list(leaves(form, entries_if_any)) == [*leaves(form), (("c",), {})]
    assert map_with_path(form, lambda path, leaf: (path[-1], leaf)) == {"a": [(0, 1), {"b": ("b", 2)}], "c": {}}


def test_a_tree_in_which_nothing_changes_is_the_same_object_and_notes_go_along() -> None:
    state: Any = OrderedDict(a=torch.ones(1))
    state._metadata = {"": {"version": 1}}
    assert map_tree(state, lambda leaf: leaf, rebuild=with_notes) is state
    changed = map_tree(state, lambda leaf: leaf + 1, rebuild=with_notes)
    assert type(changed) is OrderedDict
    assert changed._metadata == state._metadata
    assert changed is not state


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, True),
        ([1, 2], (1, 2), True),
        ([1], {0: 1}, False),
        ([1], [1, 2], False),
        ({"a": {}}, {"a": 0}, False),
        ([], [], True),
    ],
)
def test_trees_are_compared_by_structure_and_leaves(one: Any, other: Any, same: bool) -> None:
    assert same_tree(one, other, lambda a, b: bool(a == b)) is same
    assert same_tree(other, one, lambda a, b: bool(a == b)) is same


def test_what_is_not_read_is_not_made() -> None:
    seen: list[int] = []
    assert fold([1, 2, 3], lambda leaf: seen.append(leaf) or leaf, lambda _, parts: next(iter(parts))[1]) == 1
    assert seen == [1]
    assert entries("text") is None
