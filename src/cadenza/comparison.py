"""Two runs side by side: what one of them ended with, and the first thing in which the other differs."""

from __future__ import annotations

import contextlib
import fnmatch
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from cadenza.history import History
from cadenza.state import alike

IGNORED = ("clock/seconds", "callbacks/Checkpoint/*", "*second*", "*time*", "*_ms", "*/ms/*", "*memory*")
"""What is not compared: wall times, and the name of the run."""


def first_different_step(whole: Path, other: Path) -> tuple[str | None, int]:
    """What a batch left otherwise than in the whole run, by what their witnesses wrote; and how many were compared.

    A batch that was trained again after a resume must have left the same weights, however often.
    """
    expected = {line["batch"]: line for line in _lines(whole)}
    compared = 0
    for line in sorted(_lines(other), key=lambda line: int(line["batch"])):
        reference = expected.get(line["batch"])
        if reference is None:
            return f"batch {line['batch']} was trained only in the killed run", compared
        compared += 1
        for name, value in reference["sums"].items():
            if line["sums"].get(name) != value:
                return f"{name} after batch {line['batch']} (step {line['step']})", compared
    return None, compared


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    with open(folder / "witness.jsonl", encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(json.JSONDecodeError):  # one that was cut by a kill
                yield json.loads(line)


def comparable(state: dict[str, Any], ignored: Sequence[str] = IGNORED) -> dict[str, Any]:
    """The values of a saved state by their paths, without those that differ from run to run."""
    history = History()
    history.load_state_dict(state["history"])
    flat = dict(leaves({**state, "history": history.to_rows()}))
    return {name: v for name, v in flat.items() if not any(fnmatch.fnmatch(name, one) for one in ignored)}


def first_difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """The first path, in the order of their names, at which two comparable states differ by a bit.

    >>> first_difference({"a": 1, "b": 0.5}, {"a": 1, "b": 0.25})
    'b at the end'
    """
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            return f"{name} is only in the {'whole' if name in one else 'killed'} run"
        if not alike(one[name], other[name]):
            return f"{name} at the end"
    return None


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a tree of dicts and lists, with its path.

    >>> list(leaves({"a": [1, {"b": 2}]}))
    [('a/0', 1), ('a/1/b', 2)]
    """
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else None
    if pairs is None:
        yield path, value
        return
    for key, inner in pairs:
        yield from leaves(inner, f"{path}/{key}" if path else str(key))


def tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a tree, with its path."""
    return ((name, leaf) for name, leaf in leaves(value) if isinstance(leaf, Tensor))
