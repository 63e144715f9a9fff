"""Two runs side by side: what one of them ended with, and the first thing in which the other differs."""

from __future__ import annotations

import contextlib
import csv
import fnmatch
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cadenza.engine.trainer_state import Training
from cadenza.foundation import tree
from cadenza.foundation.rng import pack_rng, rng_state
from cadenza.history import History
from cadenza.resume.collect import alike, is_tree

IGNORED = (
    *("clock/seconds", "callbacks/Checkpoint/*", "*second*", "*time*", "*_ms", "*/ms/*", "*memory*"),
    "events.jsonl/*",
)
"""What is not compared: wall times, the name of the run, and the record of what happened to it."""
SET_ASIDE = re.compile(r"\.\d+$")
"""The end of a file's name, without its suffix, that a later start of a training set aside."""


def first_different_step(whole: Path, other: Path) -> tuple[str | None, int]:
    """The first batch after which a tensor differs between the notes of two runs, and how many were compared.

    A batch that was trained again after a resume must leave the same weights, however often. A script with several
    trainers has several batches of one number; one of them must be equal.
    """
    expected: dict[int, list[dict[str, Any]]] = {}
    for line in _lines(whole):
        expected.setdefault(line["batch"], []).append(line)
    compared = 0
    for line in sorted(_lines(other), key=lambda line: int(line["batch"])):
        references = expected.get(line["batch"])
        if references is None:
            return f"batch {line['batch']} was trained only in the killed run", compared
        compared += 1
        found = [_different_sum(reference["sums"], line["sums"]) for reference in references]
        if None not in found:
            return f"{found[0]} after batch {line['batch']} (step {line['step']})", compared
    return None, compared


def _different_sum(reference: dict[str, str], sums: dict[str, str]) -> str | None:
    return next((name for name, value in reference.items() if sums.get(name) != value), None)


def _lines(notes: Path) -> Iterator[dict[str, Any]]:
    with open(notes / "witness.jsonl", encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(json.JSONDecodeError):  # one that was cut by a kill
                yield json.loads(line)


def write_end(notes: Path, returned: object) -> None:
    """Stores what a training left in its process: the random numbers, and what it returned."""
    from cadenza.checkpoint import Shelf

    device = torch.device("cuda") if torch.cuda.is_available() else None
    values = returned if isinstance(returned, list | tuple) else [returned]
    left = [_left(value) for value in values]
    Shelf(notes / "end").write("end", {"rng": pack_rng(rng_state(device)), "returned": left})


def _left(value: Any) -> Any:
    """What can be compared of ``value``: all of a trainer, and everything that is made of tensors and plain values."""
    training = getattr(value, "_training", None)
    if not isinstance(training, Training):
        return value if is_tree(value) else None
    return {
        "model": {**value.model.state_dict(), **dict(value.model.named_buffers())},
        "optimizers": [optimizer.state_dict() for optimizer in training.optimizers],
        "history": value.history.to_rows(),
        "clock": value.clock.state_dict(),
        "best": None if value.best is None else [value.best.name, value.best.value],
        "stop_reason": value.stop_reason,
        "store": {name: one for name, one in value.store.items() if is_tree(one)},
    }


def everything(folder: Path, notes: Path, ignored: Sequence[str]) -> dict[str, Any]:
    """All that a training left: its newest checkpoints, the tables that it wrote, and what ``write_end`` stored."""
    from cadenza.checkpoint import Shelf

    shelves = sorted({marker.parent.parent for marker in folder.rglob("COMMITTED")})
    if not shelves:
        raise RuntimeError("the training left no checkpoint: it must use Checkpoint(to=folder) and all callbacks")
    found: dict[str, Any] = {}
    for number, shelf in enumerate(shelves):
        state = comparable(Shelf(shelf).read("last").state, ignored)
        found |= {name if len(shelves) == 1 else f"checkpoint {number}/{name}": one for name, one in state.items()}
    found |= {f"after the training/{name}": one for name, one in leaves(Shelf(notes / "end").read("last").state)}
    found |= dict(leaves(_tables(folder)))
    return {name: value for name, value in found.items() if not _matches(name, ignored)}


def _tables(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of every table under ``folder``, by the name of the file."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(path for ending in ("csv", "tsv", "jsonl") for path in folder.rglob(f"*.{ending}")):
        if SET_ASIDE.search(path.stem):
            continue
        with open(path, encoding="utf-8", newline="") as file:
            lines = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            rows = [json.loads(line) for line in file] if path.suffix == ".jsonl" else list(lines)
        found.setdefault(path.name, []).extend(rows)
    return found


def comparable(state: dict[str, Any], ignored: Sequence[str] = IGNORED) -> dict[str, Any]:
    """The values of a saved state by their paths, without those that differ from run to run."""
    history = History()
    history.load_state_dict(state["history"])
    flat = dict(leaves({**state, "history": history.to_rows()}))
    return {name: value for name, value in flat.items() if not _matches(name, ignored)}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, one) for one in patterns)


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


def leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Every value of a tree of dicts and lists, with its path.

    >>> list(leaves({"a": [1, {"b": 2}]}))
    [('a/0', 1), ('a/1/b', 2)]
    """
    return (("/".join(map(str, path)), leaf) for path, leaf in tree.leaves(value))


def tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a tree, with its path."""
    return ((name, leaf) for name, leaf in leaves(value) if isinstance(leaf, Tensor))
