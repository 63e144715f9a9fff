"""A recipe as text, and as a flat table of its leaves."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from cadenza.foundation.tree import entries_and_sets, entries_if_any, fold, leaves, plain

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
    return "".join(line + "\n" for line in _lines(tree)) or "{}\n"


def _lines(tree: Any) -> list[str]:
    made = fold(tree, _scalar, _block, entries_if_any)
    return [made] if isinstance(made, str) else made


def _block(container: Any, parts: Iterable[tuple[Any, str | list[str]]]) -> list[str]:
    """The lines of a container; a part of it is one scalar, or the lines of a container in it."""
    lines: list[str] = []
    for key, part in parts:
        head = f"{_scalar(str(key))}:" if isinstance(container, Mapping) else "-"
        lines += [f"{head} {part}"] if isinstance(part, str) else [head, *(f"  {line}" for line in part)]
    return lines


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


def flat(tree: Any) -> dict[str, Any]:
    """The leaves of ``tree`` by their dotted names.

    >>> flat({"model": {"width": 8}, "tags": ["a", "b"], "empty": {}})
    {'model.width': 8, 'tags.0': 'a', 'tags.1': 'b', 'empty': {}}
    """
    return {".".join(map(str, path)): leaf for path, leaf in leaves(tree, entries_if_any) if path}


def jsonable(value: Any) -> Any:
    """``value`` as JSON can hold it; what it cannot hold becomes the text that Python shows for it."""
    return fold(value, _jsonable_leaf, _with_text_keys, entries_and_sets)


def _with_text_keys(container: Any, parts: Iterable[tuple[Any, Any]]) -> Any:
    return plain(container, ((str(key), part) for key, part in parts))


def _jsonable_leaf(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
