"""What modules hold on the host: plain values that shape a step, and lists and dicts that a step may change."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from torch import nn

_PLAIN = (int, float, str, bool, type(None))
TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""What a module holds of itself; it is looked at apart."""


def plain_values(modules: Iterable[nn.Module]) -> Hashable:
    """All numbers, texts and tuples of them that are attributes of ``modules``, such as the rate of a dropout.

    >>> dropout = nn.Dropout(0.1)
    >>> before, dropout.p = plain_values([dropout]), 0.2
    >>> before == plain_values([dropout]), before == plain_values([nn.Dropout(0.1)])
    (False, True)
    """
    return tuple(
        (name, value)
        for module in modules
        for name, value in vars(module).items()
        if name != "training" and _is_plain(value)
    )


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def containers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The lists, dicts, sets and deques among the attributes of ``module`` and inside these, with the attribute."""
    waiting = [(name, value) for name, value in vars(module).items() if name not in TABLES]
    seen: set[int] = set()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, tuple):
            waiting += [(name, inner) for inner in value]
        elif isinstance(value, dict | list | set | deque) and id(value) not in seen:
            seen.add(id(value))
            yield name, value
            waiting += [(name, inner) for inner in (value.values() if isinstance(value, dict) else value)]


def content(container: Any) -> Any:
    """What is in ``container``, as it is now."""
    return dict(container) if isinstance(container, dict) else list(container)


def refill(container: Any, inside: Any) -> None:
    """``container`` holds ``inside`` again, and nothing else."""
    container.clear()
    if isinstance(container, list | deque):
        container.extend(inside)
    else:
        container.update(inside)


def same_content(before: Any, now: Any) -> bool:
    """Whether two answers of ``content`` tell the same.

    >>> same_content([1, "a"], [1, "a"]), same_content({"a": 1}, {"a": 2}), same_content([], [1])
    (True, False, False)
    """
    if isinstance(before, dict):
        return before.keys() == now.keys() and all(same(value, now[key]) for key, value in before.items())
    return len(before) == len(now) and all(map(same, before, now))


def same(before: Any, now: Any) -> bool:
    """Whether a value is the same object, or one that means the same to a step."""
    return before is now or (_is_plain(before) and _is_plain(now) and bool(before == now))
