"""Nested containers: what is in them, taken out, put in, compared, described.

A tree is any value. ``entries`` says what is inside one: the items of a mapping, the elements of a list or tuple.
Whoever needs another rule hands one over as ``inside``; what it answers None for is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeAlias

from torch import Tensor

Pairs: TypeAlias = Iterable[tuple[Any, Any]]
Inside: TypeAlias = Callable[[Any], Pairs | None]
Rebuild: TypeAlias = Callable[[Any, Pairs], Any]

_PLAIN = (str, int, float, bool, bytes, type(None))
_MANY = 10_000
"""So many objects are looked into for tensors."""


class Unknown(TypeError):
    """Something in a batch is neither a tensor nor a plain value, so its content cannot be followed."""


# What is inside -------------------------------------------------------------------------------------------------------


def entries(value: Any) -> Pairs | None:
    """Keys and values of a mapping, indices and elements of a list or tuple; None for anything else.

    >>> list(entries({"a": 1})), list(entries((5, 6))), entries("text")
    ([('a', 1)], [(0, 5), (1, 6)], None)
    """
    if isinstance(value, Tensor):  # the most common leaf
        return None
    if isinstance(value, list | tuple):
        return enumerate(value)
    return value.items() if isinstance(value, Mapping) else None


def entries_and_fields(value: Any) -> Pairs | None:
    """``entries``, and names and values of the fields of a dataclass."""
    found = entries(value)
    if found is not None or isinstance(value, Tensor | type) or not dataclasses.is_dataclass(value):
        return found
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]


def entries_and_sets(value: Any) -> Pairs | None:
    """``entries``, and the elements of a set."""
    return enumerate(value) if isinstance(value, set | frozenset) else entries(value)


def entries_if_any(value: Any) -> Pairs | None:
    """``entries``, with an empty container as a leaf."""
    return entries(value) if isinstance(value, Mapping | list | tuple) and value else None


# What is made of it ---------------------------------------------------------------------------------------------------


def rebuilt(value: Any, pairs: Pairs) -> Any:
    """A container of the type of ``value`` with other ``pairs``; of a mapping that cannot be made, a plain dict.

    A mapping that is a dataclass too, such as the outputs of transformers, gets them as its fields.

    >>> from collections import UserDict, defaultdict
    >>> rebuilt(UserDict(a=1), [("a", 2)]), rebuilt(defaultdict(list, a=1), [("a", 2)])
    ({'a': 2}, defaultdict(<class 'list'>, {'a': 2}))
    """
    if isinstance(value, list | tuple | set | frozenset):
        parts = [inner for _, inner in pairs]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    items = dict(pairs)
    if type(value) is dict:
        return items
    if not isinstance(value, Mapping):
        taken = {field.name for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{name: inner for name, inner in items.items() if name in taken})
    try:
        return type(value)(**items) if dataclasses.is_dataclass(value) else type(value)(items)  # type: ignore[call-arg]
    except TypeError:
        if not isinstance(value, MutableMapping):
            return items
        made = copy.copy(value)
        made.update(items)
        return made


def with_dicts(value: Any, pairs: Pairs) -> Any:
    """``rebuilt``, with a plain dict for every mapping."""
    return dict(pairs) if isinstance(value, Mapping) else rebuilt(value, pairs)


def plain(value: Any, pairs: Pairs) -> Any:
    """A dict for a mapping, a list for everything else."""
    return dict(pairs) if isinstance(value, Mapping) else [inner for _, inner in pairs]


def with_notes(value: Any, pairs: Pairs) -> Any:
    """``rebuilt``, with the attributes of a mapping, such as the versions of modules on a state dict. ``value`` itself
    if nothing in it is another object."""
    pairs = list(pairs)
    if all(new is old for (_, new), (_, old) in zip(pairs, entries(value) or (), strict=True)):
        return value
    made = rebuilt(value, pairs)
    if isinstance(value, Mapping):
        getattr(made, "__dict__", {}).update(getattr(value, "__dict__", {}))
    return made


# The walks ------------------------------------------------------------------------------------------------------------


def fold(value: Any, leaf: Callable[[Any], Any], join: Rebuild, inside: Inside = entries) -> Any:
    """What ``join(container, pairs)`` makes of each container, from the inside out. The pairs are its keys and what was
    made of its values, ``leaf(value)`` of a leaf; they are made while ``join`` reads them.

    >>> fold({"a": [1, 2]}, str, lambda value, pairs: f"{type(value).__name__}({', '.join(one for _, one in pairs)})")
    'dict(list(1, 2))'
    """
    pairs = inside(value)
    if pairs is None:
        return leaf(value)
    return join(value, ((key, fold(inner, leaf, join, inside)) for key, inner in pairs))


def walk(value: Any, inside: Inside = entries, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Path and value of everything in a tree, the containers before what is in them.

    >>> list(walk({"a": [1]}))
    [((), {'a': [1]}), (('a',), [1]), (('a', 0), 1)]
    """
    yield path, value
    for key, inner in inside(value) or ():
        yield from walk(inner, inside, (*path, key))


def same_tree(one: Any, other: Any, same: Callable[[Any, Any], bool], inside: Inside = entries) -> bool:
    """Whether two trees have the same structure, dicts in any order, and leaves that are the ``same``."""
    pairs, others = inside(one), inside(other)
    if pairs is None or others is None:
        return pairs is others and same(one, other)
    mine, theirs = dict(pairs), dict(others)
    if isinstance(one, Mapping) != isinstance(other, Mapping) or mine.keys() != theirs.keys():
        return False
    return all(same_tree(inner, theirs[key], same, inside) for key, inner in mine.items())


def leaves(value: Any, inside: Inside = entries) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Path and value of each leaf.

    >>> list(leaves({"a": [1, {"b": 2}], "c": []}))
    [(('a', 0), 1), (('a', 1, 'b'), 2)]
    """
    return ((path, one) for path, one in walk(value, inside) if inside(one) is None)


def map_tree(value: Any, change: Callable[[Any], Any], inside: Inside = entries, rebuild: Rebuild = rebuilt) -> Any:
    """``value`` with ``change(leaf)`` in the place of each leaf.

    >>> map_tree({"a": [1, (2, 3)]}, lambda leaf: leaf + 1)
    {'a': [2, (3, 4)]}
    """
    return fold(value, change, rebuild, inside)


def map_with_path(
    value: Any, change: Callable[[tuple[Any, ...], Any], Any], inside: Inside = entries, rebuild: Rebuild = rebuilt
) -> Any:
    """``map_tree`` with ``change(path, leaf)``."""
    changed = iter([change(path, leaf) for path, leaf in leaves(value, inside)])
    return map_tree(value, lambda _: next(changed), inside, rebuild)


# Tensors --------------------------------------------------------------------------------------------------------------


def tensors_of(value: Any, inside: Inside = entries_and_fields) -> Iterator[Tensor]:
    """Every tensor in ``value``, in a fixed order."""
    waiting = [value]
    while waiting:  # faster than ``leaves``, which keeps the paths
        one = waiting.pop()
        if isinstance(one, Tensor):
            yield one
        elif type(one) in (tuple, list):
            waiting += one[::-1]
        elif (pairs := inside(one)) is not None:
            waiting += [inner for _, inner in pairs][::-1]


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``value`` with every tensor replaced by what ``change`` makes of it.

    >>> import torch
    >>> with_tensors({"a": [torch.ones(1)], "b": 2}, lambda tensor: tensor + 1)
    {'a': [tensor([2.])], 'b': 2}
    """
    if isinstance(value, Tensor):  # nearly always
        return change(value)
    return fold(value, lambda one: change(one) if isinstance(one, Tensor) else one, _refilled, entries_and_fields)


def _refilled(value: Any, pairs: Pairs) -> Any:
    if isinstance(value, list):
        return [inner for _, inner in pairs]
    if entries(value) is not None:
        return rebuilt(value, pairs)
    made = copy.copy(value)  # not by its __init__, which may want something else
    for name, inner in pairs:
        object.__setattr__(made, name, inner)
    return made


def shape_of(value: Any) -> Hashable:
    """What two batches must have in common to be played by one recorded step: structure, shapes, plain values.

    >>> import torch
    >>> shape_of((torch.zeros(2, 3), "a")) == shape_of((torch.ones(2, 3), "a"))
    True
    """
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if type(value) in (list, tuple) and len(value) == 2 and type(value[0]) is Tensor and type(value[1]) is Tensor:
        one, other = value  # by far the most common, so it is asked first
        return (
            (type(value), one.shape, one.stride(), one.dtype, one.device),
            (other.shape, other.stride(), other.dtype, other.device),
        )
    if isinstance(value, list | tuple):
        return type(value), *map(shape_of, value)
    if isinstance(value, Mapping):
        return type(value), *((key, shape_of(inner)) for key, inner in value.items())
    if isinstance(value, _PLAIN):
        return type(value), value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value), *(shape_of(getattr(value, field.name)) for field in dataclasses.fields(value))
    raise Unknown(f"the batch holds a {type(value).__name__}")


def what_hides_tensors(value: Any) -> str | None:
    """The kind of an object in ``value`` that holds tensors where nothing here finds them, if there is one.

    >>> import torch
    >>> what_hides_tensors({"dice": torch.distributions.Categorical(torch.ones(6))}), what_hides_tensors([1, "a"])
    ('Categorical', None)
    """
    found = (leaf for _, leaf in leaves(value, entries_and_fields) if not isinstance(leaf, Tensor))
    return next((type(leaf).__name__ for leaf in found if _holds_tensor(leaf)), None)


def _holds_tensor(value: Any) -> bool:
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < _MANY:
        one = waiting.pop()
        if isinstance(one, Tensor):
            return True
        if id(one) in seen or isinstance(one, (*_PLAIN, type)):
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list | tuple | set | deque):
            waiting += one
        else:
            waiting += getattr(one, "__dict__", {}).values()
    return False
