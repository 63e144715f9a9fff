"""What is sent to trackers, in plain values, so that it can wait in a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadenza.experiment.media import Medium
from cadenza.history import PLACES

if TYPE_CHECKING:
    from cadenza.callback import Callback
    from cadenza.run import Run


@dataclass(frozen=True)
class Opening:
    """What a tracker is told when it starts: whose run this is, and what was set."""

    project: str
    name: str
    id: str
    folder: Path
    root: Path
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = False
    """Whether this run was tracked before: it is resumed, or another fit of the same training."""


def metrics_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a row, without where it was written."""
    return {name: value for name, value in row.items() if name not in PLACES}


def as_call(medium: Medium) -> dict[str, Any]:
    """A medium as the call of a tracker's method."""
    if medium.kind == "artifact":
        return {"what": "artifact", "name": medium.name, "file": str(medium.value)}
    key = {"image": "file", "figure": "file", "histogram": "bins", "text": "text"}[medium.kind]
    value = str(medium.value) if key == "file" else medium.value
    return {"what": medium.kind, "name": medium.name, key: value, "step": medium.step}


def outbox_place(run: Run, tracker: Callback, folder: Path, id: str | None) -> Path:
    """The outbox of ``tracker``. A second one of its kind in this run gets another, and where other runs write too,
    the id of this one is in its name."""
    kind = type(tracker)
    alike = [one for one in (getattr(one, "callback", one) for one in run.callbacks) if type(one) is kind]
    number = next((number for number, one in enumerate(alike, 1) if one is tracker), 1)
    parts = ["unsent", kind.__name__.lower(), *([str(number)] if number > 1 else []), *([id] if id else [])]
    return folder / f"{'-'.join(parts)}.jsonl"


def version(file: str) -> tuple[str, int]:
    return file, os.stat(file).st_mtime_ns
