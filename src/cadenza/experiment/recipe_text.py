"""A recipe as text, and as a flat table of its leaves."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_./][\w./ -]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~", "nan", "inf", ".nan", ".inf", "none"}


def yaml_text(tree: Any) -> str:
    """``tree`` as YAML: dicts, lists and plain values, in the order in which they stand.

    >>> print(yaml_text({"lr": 0.1, "callbacks": {"clip": {"norm": 1.0}}, "tags": ["a", "on"], "empty": []}))
    lr: 0.1
    callbacks:
      clip:
        norm: 1.0
    tags:
      - a
      - "on"
    empty: []
    <BLANKLINE>
    """
    return "".join(line + "\n" for line in _lines(tree, "")) or "{}\n"


def _lines(tree: Any, indent: str) -> Iterator[str]:
    if isinstance(tree, Mapping):
        entries = [(f"{_scalar(str(key))}:", value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        entries = [("-", value) for value in tree]
    else:
        yield indent + _scalar(tree)
        return
    for head, value in entries:
        if isinstance(value, Mapping | list | tuple) and value:
            yield f"{indent}{head}"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, int):
        return str(value)
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    plain = _PLAIN.fullmatch(text) and text == text.strip() and text.lower() not in _WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text  # 1e-05 is a text for YAML 1.1


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of ``tree`` by their dotted names.

    >>> flat({"model": {"width": 8}, "tags": ["a", "b"], "empty": {}})
    {'model.width': 8, 'tags.0': 'a', 'tags.1': 'b', 'empty': {}}
    """
    if isinstance(tree, Mapping) and tree:
        entries = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple) and tree:
        entries = [(str(index), value) for index, value in enumerate(tree)]
    else:
        return {prefix: tree} if prefix else {}
    found: dict[str, Any] = {}
    for key, value in entries:
        found.update(flat(value, f"{prefix}.{key}" if prefix else key))
    return found


def jsonable(value: Any) -> Any:
    """``value`` as JSON can hold it; what it cannot hold becomes the text that Python shows for it."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(inner) for inner in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
