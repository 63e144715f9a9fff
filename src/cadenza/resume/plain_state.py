"""Foreign state, such as that of torch's schedulers, as tensors and plain values; and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cadenza.foundation.tree import fold, plain

_PAIRS = "__pairs__"


def encoded(value: Any) -> Any:
    """State as tensors and JSON: a dict whose keys are no texts, such as milestones, as a list of pairs."""
    return fold(value, lambda leaf: leaf, _encoded)


def _encoded(container: Any, parts: Iterable[tuple[Any, Any]]) -> Any:
    made = plain(container, parts)
    if isinstance(made, dict) and not all(isinstance(key, str) for key in made):
        return {_PAIRS: [[key, part] for key, part in made.items()]}
    return made


def decoded(value: Any, like: Any) -> Any:
    """What ``encoded`` was given; ``like`` is a state of the same object, for the kinds of its containers.

    >>> decoded(encoded({"milestones": {3: (1, 2)}}), {"milestones": {3: (0, 0)}})
    {'milestones': {3: (1, 2)}}
    """
    if isinstance(value, dict):
        pairs = value[_PAIRS] if _PAIRS in value else value.items()
        known = like if isinstance(like, dict) else {}
        plain = {key: decoded(inner, known.get(key)) for key, inner in pairs}
        return type(like)(plain) if isinstance(like, dict) else plain
    if isinstance(value, list):
        known_items = like if isinstance(like, list | tuple) and len(like) == len(value) else [None] * len(value)
        items = [decoded(inner, one) for inner, one in zip(value, known_items, strict=True)]
        return tuple(items) if isinstance(like, tuple) else items
    return value
