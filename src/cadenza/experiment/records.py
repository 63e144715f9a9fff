"""What the folder of a run says, read from its files. A run that was killed reads as well as one that ended."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cadenza import history
from cadenza.callback import infer_mode
from cadenza.experiment.jsonl_file import read_lines
from cadenza.experiment.make_folder import DETAILS, FolderError, read_details
from cadenza.experiment.recipe_text import flat
from cadenza.experiment.status import read_status
from cadenza.foundation.suggest import did_you_mean

PLACES = history.PLACES | {"clock_seconds"}
"""What a row says of where it was written; everything else in it is a metric."""
RunName = str | os.PathLike[str]


@dataclass
class Record:
    """One run. Small files are read at once, the rows when they are asked for."""

    folder: Path
    details: dict[str, Any]
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.details['project']}/{self.details['name']}/{self.folder.name}"

    @property
    def state(self) -> str:
        return str(self.status.get("state", "unreadable"))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Every row that was logged, in the order of writing."""
        return list(read_lines(self.folder / "metrics.jsonl"))

    @cached_property
    def epoch_rows(self) -> list[dict[str, Any]]:
        """The rows of epochs alone, which is fast where there are many of iterations."""
        return list(read_lines(self.folder / "metrics.jsonl", beginning='{"kind": "epoch"'))

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return list(read_lines(self.folder / "events.jsonl"))

    @cached_property
    def media(self) -> list[dict[str, Any]]:
        return list(read_lines(self.folder / "media.jsonl"))

    @cached_property
    def costs(self) -> list[dict[str, Any]]:
        """What ``CostLedger`` measured, if it took part."""
        try:
            found = json.loads((self.folder / "costs.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return []
        rows = found.get("rows", []) if isinstance(found, dict) else []
        return [row for row in rows if isinstance(row, dict)]

    @property
    def pictures(self) -> list[Path]:
        """The images in ``plots``, the oldest first."""
        found = [path for path in self.folder.glob("plots/*") if path.suffix in (".png", ".svg", ".jpg", ".jpeg")]
        return sorted(found, key=lambda path: (path.stat().st_mtime, path.name))

    @property
    def settings(self) -> dict[str, Any]:
        """What was set, by dotted names: the recipe, else what the run itself showed."""
        return flat(self.details.get("recipe") or self.details.get("settings") or {})

    def last(self) -> dict[str, float]:
        """The last value of each metric: over an epoch or a pass, if it has one."""
        inside: dict[str, float] = {}
        whole: dict[str, float] = {}
        for row in self.rows:
            into = whole if is_whole(row) else inside
            into.update({name: value for name, value in row.items() if name not in PLACES})
        return inside | whole

    def best(self) -> dict[str, tuple[float, dict[str, Any]]]:
        """The best finite value of each metric of epochs, and its row."""
        found: dict[str, tuple[float, dict[str, Any]]] = {}
        for row in self.epoch_rows:
            for name, value in row.items():
                if name in PLACES or not isinstance(value, int | float) or not math.isfinite(value):
                    continue
                lower = infer_mode(name) == "min"
                if name not in found or (value < found[name][0] if lower else value > found[name][0]):
                    found[name] = (value, row)
        return found

    def headline(self) -> tuple[str, float, dict[str, Any]] | None:
        """The value that says most about the run: the best of the watched metric, else of a validation."""
        watched = self.status.get("best")
        if isinstance(watched, dict):
            return str(watched["name"]), float(watched["value"]), watched
        best = self.best()
        names = [*(name for name in best if name.startswith("val/")), *best]
        for wanted in ("val/loss", "val/accuracy", *names):
            if wanted in best:
                return wanted, *best[wanted]
        return None


def is_whole(row: Mapping[str, Any]) -> bool:
    """Whether a row is of an epoch, or of a pass that was nested in an iteration."""
    return row["kind"] == "epoch" or "over" in row


def read_run(folder: RunName) -> Record:
    """The record of the run in ``folder``; raises ``FolderError`` if it is none."""
    place = Path(folder)
    return Record(place, read_details(place), read_status(place))


def find_run(run: RunName, root: RunName = "runs") -> Path:
    """The folder of ``run``: a folder, its id or a part of it, or ``project/name`` for the newest of that name."""
    place = Path(run)
    if (place / DETAILS).is_file():
        return place
    found = run_folders(root)
    text = os.fspath(run).strip("/\\")
    ids = [folder for folder in found if folder.name == text] or [
        folder for folder in found if folder.name.startswith(text) or folder.name.split("-")[-1] == text
    ]
    if len(ids) == 1:
        return ids[0]
    if len(ids) > 1:
        raise FolderError(f"{text!r} could be any of {', '.join(folder.name for folder in ids)}; write more of it")
    names = {folder: "/".join(folder.parts[-3:-1]) for folder in found}
    named = [folder for folder, name in names.items() if text in (name, folder.parts[-2])]
    if named:
        return named[-1]
    hint = did_you_mean(text, [*(folder.name for folder in found), *names.values()], ".", cutoff=0.3)
    raise FolderError(f"no run {text!r} in {Path(root)}{hint} `cadenza runs` lists them")


def run_folders(root: RunName = "runs") -> Sequence[Path]:
    """The folders of all runs below ``root``, the oldest first."""
    return _by_age(Path(root).glob(f"*/*/*/{DETAILS}"))


def runs_in(place: Path) -> Sequence[Path]:
    """The folders of the runs of one project and name, the oldest first."""
    return _by_age(place.glob(f"*/{DETAILS}"))


def _by_age(details: Iterable[Path]) -> Sequence[Path]:
    found = [path.parent for path in details]
    second = len("20261231-235959")  # within one, what was written first is older
    return sorted(found, key=lambda one: (one.name[:second], (one / DETAILS).stat().st_mtime_ns, str(one)))
