"""Foreign state, such as that of torch's schedulers, as tensors and plain values; and back."""

from __future__ import annotations

from typing import Any

_PAIRS = "__pairs__"


def encoded(value: Any) -> Any:
    """State as tensors and JSON: a dict whose keys are no texts, such as milestones, as a list of pairs."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: encoded(inner) for key, inner in value.items()}
        return {_PAIRS: [[key, encoded(inner)] for key, inner in value.items()]}
    if isinstance(value, list | tuple):
        return [encoded(inner) for inner in value]
    return value


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
